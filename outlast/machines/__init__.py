"""Which machines and regions there are, and what goes together."""
