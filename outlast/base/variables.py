"""Sets environment variables temporarily."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets these in this process's environment, and restores them at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
