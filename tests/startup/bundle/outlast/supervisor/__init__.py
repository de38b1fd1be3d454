"""Stand-in for the supervisor's package, so that the tests decide how it ends."""
