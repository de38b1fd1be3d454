"""What every part of the local cloud stands on: errors, time, state on the disk."""
