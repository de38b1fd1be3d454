"""Rules for every request: who sends it, and whether its body and query fit Google's API."""
