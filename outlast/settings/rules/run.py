"""Rules of what runs: trainer or command, its arguments, and what names the run."""

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from outlast.base.suggest import did_you_mean
from outlast.bucket.layout import EXPERIMENT_PATTERN
from outlast.settings import keys
from outlast.settings.reader import NAMESPACE, Reader, SettingsError, bad
from outlast.settings.rules.code import requirements_of, source_files
from outlast.settings.rules.data import GS_PATH, data_paths_of
from outlast.settings.rules.trainer import arguments_of, parser_of, source_of
from outlast.spec import bundle as bundles
from outlast.spec import delivery, identity
from outlast.spec.pin import Pin
from outlast.spec.run_spec import Argument, BadSpec, argv, parse_checkpoint_every, texts_of

PROCESSES_LIMIT = 256
RESUME_LIMIT = 9999
"""More would not fit into the name of a VM."""
_FLAG = re.compile(r"[a-z][-a-z0-9]*")
_SET_ELSEWHERE = {
    "checkpoint-every": "set outlast:checkpointEvery",
    "mode": "leave it out",
    "run-dir": "a VM has its own folder; leave it out",
    "help": "leave it out",
}


def experiment_of(name: str, stack: str) -> str:
    experiment = name or stack
    if not EXPERIMENT_PATTERN.fullmatch(experiment):
        origin = "" if name else " (the stack's name)"
        raise SettingsError(
            f"{NAMESPACE}:experiment {experiment!r}{origin}: must have 1 to 40 lower-case letters,"
            " digits and dashes, the first a letter, the last no dash; set outlast:experiment"
        )
    return experiment


def args_of(args: Mapping[str, Any]) -> dict[str, Argument]:
    checked: dict[str, Argument] = {}
    for flag, value in args.items():
        if not _FLAG.fullmatch(flag):
            raise bad(
                "args",
                flag,
                "a flag is written without dashes in front, in lower case with dashes, such as"
                " learning-rate",
            )
        if flag in _SET_ELSEWHERE:
            raise SettingsError(
                f"{NAMESPACE}:args {flag}: is not a hyperparameter; {_SET_ELSEWHERE[flag]}"
            )
        if not isinstance(value, bool | int | float | str):
            raise bad(f"args.{flag}", value, "must be a number, a text or true or false")
        checked[flag] = value
    return checked


def command_of(read: Reader) -> str:
    """The command as JSON, a text for the shell or a list of texts; empty if there is none."""
    text = read.text("command")
    if not text:
        return ""
    command: Any = text
    if text.startswith("["):
        try:
            command = json.loads(text)
        except ValueError:
            command = None
        if not (command and isinstance(command, list) and all(isinstance(w, str) for w in command)):
            raise bad("command", text, 'a list must be JSON texts, such as ["python3", "train.py"]')
    usual = {
        "trainer": keys.declared()["trainer"]["default"],
        "processes": "1",
        "trainerPython": "",
    }
    instead = {
        "trainer": "a run has a trainer or a command",
        "processes": "a command starts its own, with torchrun for example",
        "trainerPython": "write the interpreter into the command",
    }
    for key, value in usual.items():
        if read.text(key) != value:
            raise SettingsError(
                f"{NAMESPACE}:{key} {read.text(key)!r} beside {NAMESPACE}:command: {instead[key]};"
                f" leave {NAMESPACE}:{key} out"
            )
    if read.mapping("args"):
        raise SettingsError(
            f"{NAMESPACE}:args beside {NAMESPACE}:command: are a trainer's; write the command's own"
            " into it"
        )
    if re.fullmatch("[0-9]+", read.text("checkpointEvery")):
        raise bad(
            "checkpointEvery",
            read.text("checkpointEvery"),
            "a command makes no steps; must be auto, or seconds such as 60s, the least time"
            " between two checkpoints",
        )
    return json.dumps(command, ensure_ascii=True, separators=(",", ":"))


def _command_data(command: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """What `{data}` is in a command: all that it may read besides."""
    if "{data}" in command and not paths:
        raise bad(
            "command",
            "{data}",
            f"the run has no data; set {NAMESPACE}:dataPaths to the data's gs:// paths",
            "without it",
        )
    return paths


def content_of(
    read: Reader,
    trainer: str,
    args: Mapping[str, Argument],
    command: str,
    git: delivery.Git | None,
) -> dict[str, Any]:
    """What names the run, checked by the trainer's own parser even where it is pinned. A trainer
    that is none of the checkout's is not run here: its flags count as they are written."""
    pin = Pin.parse(init_of(read, command)) if read.text("init") else None
    init = None if pin is None else {"path": pin.path, "blake3": pin.digest}
    if command or git or read.text("source"):
        try:
            source = git.source if git else identity.files_digest(source_files(read.text("source")))
        except bundles.BundleError as error:
            raise SettingsError(f"{NAMESPACE}:source {error}") from None
        spec = identity.Spec(
            trainer=trainer if command else _own_module(trainer),
            arguments={"command": json.loads(command)}
            if command
            else {"argv": argv(texts_of(args))},
            source=source,
            data=_command_data(command, data_paths_of(read)) if command else (),
            init=init,
            rerun=read.integer("rerun", 0),
            requirements=requirements_of(read, git),
        )
        return identity.content(spec)
    parser = parser_of(trainer)
    flags = {
        option.removeprefix("--")
        for action in parser._actions  # argparse has no public list of them
        for option in action.option_strings
        if option.startswith("--")
    }
    for flag in args:
        if flag not in flags:
            offered = sorted(flags - _SET_ELSEWHERE.keys())
            raise SettingsError(
                f"{NAMESPACE}:args {flag}: is not a flag of trainer {trainer};"
                f" {did_you_mean(flag, offered, 'its flags are ' + ', '.join(offered))}"
            )
    try:
        arguments = arguments_of(trainer, argv(texts_of(args)))
        seed = arguments.pop("seed", None)
        return identity.content(
            identity.Spec(
                trainer=trainer,
                arguments=arguments,
                init=init,
                source=source_of(trainer),
                seed=seed,
                rerun=read.integer("rerun", 0),
                requirements=requirements_of(read, git),
            )
        )
    except identity.IdentityError as error:
        raise SettingsError(
            f"{NAMESPACE}:args of trainer {trainer}: {error}; run python -m outlast.trainers"
            f" {trainer} --help for the rules"
        ) from None


def _own_module(name: str) -> str:
    try:
        return delivery.check_module(name)
    except delivery.DeliveryError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None


def pinned_of(read: Reader) -> str:
    pinned = read.text("run")
    if pinned and not identity.RUN_PATTERN.fullmatch(pinned):
        raise bad("run", pinned, "must be a run's ten digits, 0-9 and a-f", "or leave it empty")
    return pinned


def init_of(read: Reader, command: str) -> str:
    text = read.text("init")
    if not text:
        return ""
    if command:
        raise SettingsError(
            f"{NAMESPACE}:init beside {NAMESPACE}:command: is a trainer's; let the command read"
            " the other run's result"
        )
    try:
        pin = Pin.parse(text)
    except ValueError:
        pin = None
    if pin is None or not GS_PATH.fullmatch(pin.path):
        raise bad(
            "init",
            text,
            "must be a run's checkpoint in a bucket with its digest, as outlast checkpoints"
            " EXPERIMENT prints it",
            "or leave it empty",
        )
    return str(pin)


def checkpoint_every_of(text: str) -> str:
    try:
        return parse_checkpoint_every(text)
    except BadSpec:
        raise bad(
            "checkpointEvery", text, "must be auto, seconds such as 30s, or steps such as 200"
        ) from None


def interpreter(path: str) -> str:
    if path and not PurePosixPath(path).is_absolute():
        raise bad("trainerPython", path, "must be an absolute path", "or leave it empty")
    return path
