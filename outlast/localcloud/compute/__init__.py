"""Compute Engine: what clients call, and what groups and VMs do by themselves."""
