"""IAM and Resource Manager."""
