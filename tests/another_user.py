"""Whether another user of this machine can run the Python that runs the tests."""

import functools
import os
import subprocess
import sys

import pytest

NOBODY = 65534


@functools.cache
def problem() -> str:
    """Why another user cannot run this Python, often as it is below root's home; empty if one
    can."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import outlast, numpy, blake3"],
            cwd="/",
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except PermissionError as error:
        return str(error)
    return done.stderr.strip()[-200:] if done.returncode else ""


def needs_python() -> None:
    """Skips the test where another user cannot run this Python."""
    if said := problem():
        pytest.skip(f"another user cannot run this Python: {said}")
