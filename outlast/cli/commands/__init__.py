"""The commands of `outlast`, one a module, imported when they are needed."""
