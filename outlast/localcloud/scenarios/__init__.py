"""Scenarios: planned faults of the local cloud, and their times."""
