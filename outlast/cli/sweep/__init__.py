"""Sweeps: many trials of one experiment, each a stack with one run.

`file` reads what the user asks for, `sampling` turns it into parameters, `trials` into settings and
runs, `plan` says what they cost, `bring_up` starts them, `leaderboard` compares them, and `asking`
lets another optimiser choose the parameters.
"""
