"""Faults of single requests: rules, and the layer that applies them."""
