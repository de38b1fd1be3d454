"""A supervisor that says where it runs, then does what the test put into `act.py`."""

import json
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(os.environ.get("OUTLAST_ROOT") or "/")
seen = {
    "argv": sys.argv[1:],
    "cwd": os.getcwd(),
    "file": __file__,
    "executable": sys.executable,
    "safe_path": sys.flags.safe_path,
    "bundle": os.environ["OUTLAST_BUNDLE_DIR"],
    "bytecode": "PYTHONDONTWRITEBYTECODE" not in os.environ,
    "lock_is_closed": not os.path.exists("/proc/self/fd/9"),
}
(ROOT / "seen.json").write_text(json.dumps(seen))
runpy.run_path(str(ROOT / "act.py"))
