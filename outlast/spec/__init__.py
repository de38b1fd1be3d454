"""The spec of a run: its identity, its bundle, where its code comes from, what may change
midway.
"""
