"""Rules for a command: the options of its runner, and warnings."""

import json
from typing import Any

from outlast.settings import errors
from outlast.settings.errors import NAMESPACE, SettingsError
from outlast.settings.keys import Keys
from outlast.spec import bundle as bundles
from outlast.spec.command_words import RESULT_GB_MAX, CommandWords
from outlast.spec.file_kinds import Kinds
from outlast.spec.globs import GlobError

_KEYS = {
    "checkpoint": "checkpointFiles",
    "log": "logFiles",
    "by-product": "byProductFiles",
    "checkpoint-dir": "checkpointDir",
    "allow-no-output": "allowNoOutput",
    "result-gb": "resultGb",
}
"""The runner's options, each with its key."""


def command_options_of(given: Keys, command: str) -> dict[str, Any]:
    """The command runner's options that differ from the defaults, by flag."""
    kinds = Kinds(given.checkpoint_files, given.log_files, given.by_product_files)
    options: dict[str, Any] = {
        option: list(found) for option, found in kinds.given.items() if found
    }
    if given.checkpoint_dir:
        options["checkpoint-dir"] = _folder(given)
    if given.allow_no_output:
        options["allow-no-output"] = True
    if given.result_gb != RESULT_GB_MAX:
        options["result-gb"] = given.result_gb
    if options and not command:
        key = _KEYS[next(iter(options))]
        raise SettingsError(
            f"{NAMESPACE}:{key}: is for a command, and the run has a trainer; leave it out, or set "
            f"{NAMESPACE}:command"
        )
    try:
        kinds.check({option: f"{NAMESPACE}:{_KEYS[option]}" for option in kinds.given})
    except GlobError as error:
        raise SettingsError(str(error)) from None
    return options


def _folder(given: Keys) -> str:
    return given.checkpoint_dir.removeprefix("./").rstrip("/")


def slips(command: str, given: Keys) -> list[str]:
    """Warnings about words in braces that look like a mistyped field, and about a command that
    saves nothing that could be kept.
    """
    if not command:
        return []
    words, folder = json.loads(command), _folder(given)
    text = words if isinstance(words, str) else " ".join(words)
    made = CommandWords(text, ("gs://",), checkpoint_dir=folder)
    if why := made.refusal():
        raise SettingsError(f"{NAMESPACE}:{why}")
    said = list(made.near_misses())
    source = given.source
    place = bundles.inside(errors.project(), source) if source else None
    # Code from git or in the image cannot be read here.
    if place is not None and place.is_dir():
        if unsaved := made.cannot_save(place):
            said.append(unsaved)
        if why := made.script_refusal(place):
            raise SettingsError(f"{NAMESPACE}:{why}")
        said.extend(made.lost_failures(place))
    return [f"{NAMESPACE}:{sentence}" for sentence in said]
