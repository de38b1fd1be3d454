"""Prices and sums."""
