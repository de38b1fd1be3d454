"""Reviews: what an `up` would do to runs and costs."""
