"""Deletes old runs, bundles and environments by rule."""
