"""Measurements: what a kill, a zombie or a flipped bit does to a run, and what a save costs."""
