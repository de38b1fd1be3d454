"""Shared by all parts: exit codes, process trees, disk space. Standard library only."""
