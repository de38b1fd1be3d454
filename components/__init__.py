"""What is declared in the cloud: one ComponentResource a file, each given values only.

Components read no configuration, no environment and no clock; `settings.py` does that for them.
Only the dynamic providers (`providers.py`) look at the bucket and at the time. Nothing is imported
here: the engine's plugin loads `components.providers` at every `up`, and needs no gcp package.
"""
