"""Dynamic providers. A stack's state names these modules, so their paths must not change."""
