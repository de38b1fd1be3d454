"""What a stack's settings mean: their schema, rules and look-ups."""
