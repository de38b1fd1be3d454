"""What is in the bucket: layout, records, store, HEAD, checkpoints, data, history."""
