"""What `outlast fetch` writes from a run's rows, beside its result: each step once, whatever was
repeated after a preemption.
"""
