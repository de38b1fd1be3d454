"""Compute Engine: its API, its groups and its VMs."""
