"""Dynamic providers. The state of a stack names these modules, so their paths stay."""
