"""A plugin in the place of Google's, for tests of how the engine finds and starts it."""

import sys
from pathlib import Path

from outlast.cli.engine import PLUGIN

SCRIPT = """#!/bin/sh
env > '{seen}'
endpoint=${{GOOGLE_COMPUTE_CUSTOM_ENDPOINT%/compute/beta/}}
exec '{python}' -m outlast.localcloud.provider --endpoint "$endpoint"
"""


def fake_plugin(folder: Path) -> Path:
    """Puts a plugin that is the stand-in's code into a folder; returns the file in which it notes
    its environment.
    """
    folder.mkdir(parents=True)
    seen = folder / "seen"
    (folder / PLUGIN).write_text(SCRIPT.format(seen=seen, python=sys.executable))
    (folder / PLUGIN).chmod(0o755)
    return seen
