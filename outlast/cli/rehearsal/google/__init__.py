"""The rehearsal on Google: a scenario in a project that the user names, for cents."""
