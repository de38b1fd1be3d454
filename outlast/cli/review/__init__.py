"""Reviews: what an `up` would do, in words of runs and costs."""
