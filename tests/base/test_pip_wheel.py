"""The wheel of pip for a Python without ensurepip: from a folder, or from an index."""

import functools
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from outlast.base import pip_wheel

WHEEL = "pip-26.1-py3-none-any.whl"
DATA = b"a wheel"
DIGEST = hashlib.sha256(DATA).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of an index of one wheel, and its folder."""
    folder = tmp_path / "index"
    (folder / "simple/pip").mkdir(parents=True)
    (folder / "files").mkdir()
    (folder / "files" / WHEEL).write_bytes(DATA)
    (folder / "simple/pip/index.html").write_text(
        '<!DOCTYPE html><a href="../../files/pip-9.tar.gz#sha256=0">pip-9.tar.gz</a>\n'
        f'<a data-requires-python="&gt;=3.9" href="../../files/{WHEEL}#sha256={DIGEST}">x</a>'
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple", folder
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def pinned(tmp_path: Path) -> Path:
    file = tmp_path / "pip.txt"
    file.write_text(f"pip==26.1 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{DIGEST}\n")
    return file


@pytest.mark.parametrize("end", ["", "/"])
def test_it_comes_from_the_index_once(index, pinned, tmp_path, end):
    address, served = index
    environ = {"PIP_INDEX_URL": address + end}
    found = pip_wheel.find(pinned, [tmp_path / "into"], environ)
    assert found == tmp_path / "into" / WHEEL and found.read_bytes() == DATA
    (served / "files" / WHEEL).unlink()
    assert pip_wheel.find(pinned, [tmp_path / "into"], environ) == found


def test_one_at_hand_needs_no_index(pinned, tmp_path):
    """Where its hash is a pinned one; a damaged one is passed over."""
    environ = {"PIP_INDEX_URL": "http://127.0.0.1:1", "PIP_FIND_LINKS": f"/none {tmp_path}/links"}
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / WHEEL).write_bytes(b"damaged")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / WHEEL).write_bytes(DATA)
    found = pip_wheel.find(pinned, [tmp_path / "kept"], environ)
    assert found == tmp_path / "links" / WHEEL


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("hash", "has another hash than the pinned one"),
        ("absent", "is not in http://127.0.0.1:"),
        ("page", "simple/pip/: no answer (HTTP Error 404"),
        ("down", "127.0.0.1:1/simple/pip/: no answer"),
        ("offline", "is in no folder, and PIP_NO_INDEX is set"),
        ("unnamed", "is in no folder, and PIP_INDEX_URL names no index"),
        ("unpinned", "pip.txt: pins no pip"),
        ("nothing", "pip.txt: No such file"),
    ],
)
def test_without_one_it_ends_with_a_sentence(index, pinned, tmp_path, change, said):
    address, served = index
    variables = {"PIP_INDEX_URL": address}
    if change == "hash":
        (served / "files" / WHEEL).write_bytes(b"another")
    elif change == "absent":
        (served / "simple/pip/index.html").write_text("<a name=pip>")
    elif change == "page":
        (served / "simple/pip/index.html").unlink()
        (served / "simple/pip").rmdir()
    elif change == "down":
        variables = {"PIP_INDEX_URL": "http://me:s3cret@127.0.0.1:1/simple"}
    elif change == "offline":
        variables = {"PIP_NO_INDEX": "1"}
    elif change == "unnamed":
        variables = {}
    elif change == "unpinned":
        pinned.write_text("six==1\n")
    else:
        pinned.unlink()
    done = subprocess.run(
        [sys.executable, "-I", pip_wheel.__file__, pinned, tmp_path / "into"],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pip: ") and said in done.stderr
    assert done.stderr.count("\n") == 1 and "s3cret" not in done.stderr
    assert not (tmp_path / "into").exists()
