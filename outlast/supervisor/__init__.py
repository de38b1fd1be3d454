"""The supervisor: everything on the VM but the training."""
