"""Clients of Google's APIs for the program and the commands: Compute Engine, images, bakes."""
