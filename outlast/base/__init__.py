"""What every part may use: exit codes, process trees, room on disks. Standard library only."""
