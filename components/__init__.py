"""What is declared in the cloud: one ComponentResource a file, each given values only.

Components read no configuration, no environment and no clock; `outlast/settings` does that.
"""
