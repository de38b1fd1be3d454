"""Rules of a command: what its runner is started with, and what a person should know before."""

import json
from pathlib import PurePosixPath
from typing import Any

from outlast.settings import keys, reader
from outlast.settings.reader import NAMESPACE, Reader, SettingsError, bad
from outlast.spec import bundle as bundles
from outlast.spec.command_words import CommandWords
from outlast.spec.file_kinds import Kinds
from outlast.spec.globs import GlobError

GLOBS = (("checkpointFiles", "checkpoint"), ("logFiles", "log"), ("byProductFiles", "by-product"))
"""Keys with globs, and the runner's options of them."""

RESULT_GB_LIMIT = 10_000


def command_options_of(read: Reader, command: str) -> str:
    """More options of the command's runner as JSON, by their flags; empty if all is as usual."""
    globs = {option: _globs(read, key) for key, option in GLOBS}
    folder = _folder(read)
    options: dict[str, Any] = {option: found for option, found in globs.items() if found}
    if folder:
        options["checkpoint-dir"] = folder
    if read.boolean("allowNoOutput"):
        options["allow-no-output"] = True
    most = read.integer("resultGb", 1, RESULT_GB_LIMIT)
    if str(most) != str(keys.declared()["resultGb"]["default"]):
        options["result-gb"] = most
    if options and not command:
        named = {option: key for key, option in GLOBS}
        named |= {"checkpoint-dir": "checkpointDir", "allow-no-output": "allowNoOutput"}
        key = named.get(next(iter(options)), "resultGb")
        raise SettingsError(
            f"{NAMESPACE}:{key}: is for a command, and the run has a trainer; leave it out, or set "
            f"{NAMESPACE}:command"
        )
    try:
        fields = {option: f"{NAMESPACE}:{key}" for key, option in GLOBS}
        Kinds(*map(tuple, globs.values())).check(fields)
    except GlobError as error:
        raise SettingsError(str(error)) from None
    return json.dumps(options, separators=(",", ":")) if options else ""


def _globs(read: Reader, key: str) -> list[str]:
    globs = read.array(key)
    for glob in globs:
        if not isinstance(glob, str) or not glob.strip():
            raise bad(key, glob, "must be a list of globs, such as *.pt")
    return globs


def _folder(read: Reader) -> str:
    folder = read.text("checkpointDir").removeprefix("./").rstrip("/")
    path = PurePosixPath(folder)
    if read.text("checkpointDir") and (
        path.is_absolute() or ".." in path.parts or folder in ("", ".")
    ):
        raise bad(
            "checkpointDir",
            read.text("checkpointDir"),
            "must be a folder below the one that the command runs in",
        )
    return folder


def slips(command: str, read: Reader) -> list[str]:
    """Sentences on words in braces that look like a mistyped field of the command, and on one that
    saves nothing that could be kept."""
    if not command:
        return []
    words, folder = json.loads(command), _folder(read)
    text = words if isinstance(words, str) else " ".join(words)
    made = CommandWords(text, ("gs://",), checkpoint_dir=folder)
    if why := made.refusal():
        raise SettingsError(f"{NAMESPACE}:{why}")
    said = list(made.near_misses())
    source = read.text("source")
    place = bundles.inside(reader.project(), source) if source else None
    # What comes from git, or with the image, cannot be read here.
    if place is not None and place.is_dir():
        if unsaved := made.cannot_save(place):
            said.append(unsaved)
        if why := made.script_refusal(place):
            raise SettingsError(f"{NAMESPACE}:{why}")
        said.extend(made.lost_failures(place))
    return [f"{NAMESPACE}:{sentence}" for sentence in said]
