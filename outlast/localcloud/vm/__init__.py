"""VMs as process trees on this machine: disks, boots, metadata server."""
