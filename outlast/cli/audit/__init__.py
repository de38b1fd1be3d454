"""What exists in a project that Outlast created, and what of it no stack owns."""
