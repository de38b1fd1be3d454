"""The commands of `outlast`, one for each module, imported when they are needed."""
