"""The basis of every part of the local cloud: errors, time, state on the disk."""
