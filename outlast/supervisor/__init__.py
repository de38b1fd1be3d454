"""The supervisor: everything on the VM except the training."""
