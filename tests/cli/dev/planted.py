"""Folders that stand for VMs, and a `gcloud` that really runs what it should run there.

A VM is a folder with a bundle whose supervisor is a program of this test; the agent, its pipes and
all processes are real.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from outlast.cli.dev.channel import PYTHON, Channel

SHA256 = "a" * 64
SUPERVISOR = """
import pathlib, subprocess, sys, time
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
file = pathlib.Path(words["--source"]) / "train.py"
print("trains", file.read_text().strip() if file.exists() else "nothing", flush=True)
if file.exists() and "fails" in file.read_text():
    sys.exit(3)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
time.sleep(1000)
"""
GCLOUD = """#!{python}
import json, os, subprocess, sys
words = sys.argv[1:]
with open(os.environ["GCLOUD_LOG"], "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[:2] != ["compute", "ssh"]:
    sys.exit("gcloud: unknown words")
vm = words[2].rpartition("@")[2]
root = os.path.join(os.environ["GCLOUD_VMS"], vm)
if not os.path.isdir(root):
    print(f"ERROR: (gcloud.compute.ssh) Could not fetch resource {{vm}}", file=sys.stderr)
    sys.exit(1)
(command,) = [word.removeprefix("--command=") for word in words if word.startswith("--command=")]
print("Welcome to this VM")  # a profile that prints
sys.stdout.flush()
env = {{"PATH": os.environ["PATH"], "HOME": root + "/home", "OUTLAST_ROOT": root}}
env["METADATA_BASE"] = os.environ["GCLOUD_METADATA"]
with subprocess.Popen(["bash", "-c", command], env=env) as shell:
    with open(os.path.join(root, "shell"), "w") as file:
        file.write(str(shell.pid))
    sys.exit(shell.wait())
"""


@dataclass
class Metadata:
    """A metadata server."""

    base: str
    values: dict[str, str] = field(default_factory=dict)


@contextmanager
def metadata_server() -> Iterator[Metadata]:
    """Serves attributes of the instance."""
    values = {"outlast-bundle-sha256": SHA256}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = values.get(self.path.rpartition("/")[2])
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Metadata(f"http://127.0.0.1:{server.server_port}/computeMetadata/v1", values)
    finally:
        server.shutdown()
        server.server_close()


def plant_vm(root: Path) -> Path:
    """A VM's disk with a home folder, an interpreter and a bundle; returns the home folder."""
    supervisor = root / "var/lib/outlast/bundle" / SHA256 / "outlast/supervisor"
    supervisor.mkdir(parents=True)
    for name in ("../__init__.py", "__init__.py", "development.py"):
        (supervisor / name).write_text("")
    (supervisor / "__main__.py").write_text(SUPERVISOR)
    python = root / "var/lib/outlast/venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (root / "home").mkdir()
    return root / "home"


def plant_gcloud(folder: Path) -> Path:
    """A folder for PATH with the recording `gcloud`."""
    folder.mkdir()
    (folder / "gcloud").write_text(GCLOUD.format(python=sys.executable))
    (folder / "gcloud").chmod(0o755)
    return folder


def enter(root: Path, metadata: Metadata) -> Channel:
    """A connection to the agent on a planted VM."""
    env = {"PATH": os.environ["PATH"], "HOME": str(root / "home"), "OUTLAST_ROOT": str(root)}
    return Channel(PYTHON, {**env, "METADATA_BASE": metadata.base})


def calls(log: Path) -> list[list[str]]:
    """The words of each call of `gcloud`."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def marked(text: str) -> list[int]:
    """The live processes whose environment has a text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
