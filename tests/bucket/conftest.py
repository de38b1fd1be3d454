"""The clocks and stores of these tests."""

from tests.stores import claim, clock, layout, memory, storage_api, store

__all__ = ["claim", "clock", "layout", "memory", "storage_api", "store"]  # fixtures
