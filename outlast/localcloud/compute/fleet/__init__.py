"""Compute Engine's state machine: templates, groups, VMs and capacity. Pure: no input or output."""
