"""Scenarios: what goes wrong in the local cloud, and when."""
