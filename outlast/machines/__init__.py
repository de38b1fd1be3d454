"""Machine types and regions, and the rules for combining them."""
