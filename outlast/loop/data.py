"""``outlast.data``: a local path for a local or gs:// path, before a training is set up.

If a supervisor is running, the request goes to it, on a separate connection. On a laptop a process
of ``python -m outlast.supervisor fetch`` downloads into the user's cache folder (``OUTLAST_CACHE``,
by default ``~/.cache/outlast``), and ``outlast.train`` later reports to its supervisor which data
was used.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from outlast.base.folders import PACKAGE
from outlast.base.scratch_space import cache_home
from outlast.loop.errors import DataError, LoopError, SupervisorLost, report_as_sentences
from outlast.protocol import (
    SOCKET_VARIABLE,
    Channel,
    Error,
    Fetch,
    Fetched,
    ProtocolError,
)

CONNECT_SEC = 30.0
TICK_SEC = 1.0

_found: dict[str, Path] = {}
"""Data that this process asked for, and its local paths."""
_untold: dict[str, Path] = {}
"""Those that no training has reported yet."""


def data(path: str | os.PathLike[str]) -> Path:
    """A local path for the data at ``path``: a file, or a folder with files.

    ``gs://BUCKET/PATH`` names an object, or all objects below ``PATH/``. They are fetched once per
    boot (on a laptop once in total), in parallel, and checked by CRC32C and size; an interrupted
    download resumes. Do not write there. The run remembers the data that it uses: a later attempt
    that finds different bytes ends.

    Raises DataError if the data is absent, forbidden, too large for this machine, or has changed
    since the run began; LoopError if the supervisor does not answer.
    """
    report_as_sentences()
    return find(path)


def take_used() -> Mapping[str, Path]:
    """Return the data requested since the last call, which belongs to a training, with local
    paths."""
    used = dict(_untold)
    _untold.clear()
    return used


def find(path: str | os.PathLike[str], tick: Callable[[], None] = lambda: None) -> Path:
    """Like ``data``; ``tick`` is called once a second during the fetch, whichever process
    fetches."""
    text = os.fspath(path)
    if "://" not in text:
        text = os.path.abspath(text)
        if not os.path.exists(text):
            raise DataError(f"data {os.fspath(path)}: no such file or folder")
        if not (os.path.isfile(text) or os.path.isdir(text)):
            raise DataError(
                f"data {os.fspath(path)}: is neither a file nor a folder; a resumed run reads "
                "its data again"
            )
    if text not in _found:
        socket_path = os.environ.get(SOCKET_VARIABLE)
        if socket_path:
            _found[text] = _ask(socket_path, text, tick)
        elif "://" in text:
            _found[text] = fetch(text, "data", tick)
        else:
            _found[text] = Path(text)
    _untold[text] = _found[text]
    return _found[text] if "://" in text else Path(path)


def _ask(socket_path: str, url: str, tick: Callable[[], None]) -> Path:
    """Ask the supervisor, which may take as long as a download."""
    try:
        with Channel.connect(socket_path, timeout_sec=CONNECT_SEC) as channel:
            channel.send(Fetch(url))
            while (answer := channel.receive(TICK_SEC)) is None:
                tick()
    except (ProtocolError, OSError) as error:
        raise SupervisorLost(f"data {url}: the supervisor gave no answer ({error})") from None
    return answer_path(answer, url)


def answer_path(answer: object, url: str) -> Path:
    """The path in a supervisor's answer; DataError if it refuses."""
    if isinstance(answer, Fetched):
        return Path(answer.path)
    if isinstance(answer, Error) and answer.kind in ("usage", "data-changed"):
        raise DataError(answer.message)
    said = answer.message if isinstance(answer, Error) else type(answer).__name__.lower()
    raise LoopError(f"data {url}: the supervisor answered: {said}")


def cache_folder() -> Path:
    """The folder for files that can be downloaded again."""
    return cache_home("outlast", "OUTLAST_CACHE")


def fetch(url: str, kind: str, tick: Callable[[], None] = lambda: None) -> Path:
    """Fetch data or a run's result (``kind``) into the cache folder, in a separate process."""
    command = [sys.executable, "-P", "-m", "outlast.supervisor", "fetch", url, "--kind", kind]
    command += ["--into", str(cache_folder()), "--json"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if is_file(sys.stderr) else subprocess.DEVNULL,
            env=environment(),
        )
    except OSError as error:
        raise LoopError(f"{kind} {url}: cannot be fetched ({error})") from None
    with process:
        while True:
            try:
                said, _ = process.communicate(timeout=TICK_SEC)
                break
            except subprocess.TimeoutExpired:
                tick()
            except BaseException:
                process.terminate()
                raise
    try:
        found = json.loads(said)
        if "path" in found:
            return Path(found["path"])
        sentence, refused = str(found["error"]), bool(found["usage"])
    except (ValueError, KeyError, TypeError):
        raise LoopError(
            f"{kind} {url}: was not fetched (exit code {process.returncode}); try again, it"
            " continues"
        ) from None
    raise (DataError if refused else LoopError)(sentence)


def environment() -> dict[str, str]:
    """Environment for a process of ``outlast.supervisor``: the same outlast, and no other
    supervisor."""
    home = str(PACKAGE.parent)
    path = os.environ.get("PYTHONPATH")
    found = {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home}
    found.pop(SOCKET_VARIABLE, None)
    return found


def is_file(stream: object) -> bool:
    """Whether a stream is a real file: a notebook's or a test's is not."""
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
