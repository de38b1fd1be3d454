"""Rules for the trainer or command, its arguments, and the content that names the run."""

import json
import re
from collections.abc import Mapping
from typing import Any

from outlast.base.codec import canonical_json
from outlast.base.suggest import did_you_mean
from outlast.bucket.layout import EXPERIMENT_PATTERN
from outlast.settings.errors import NAMESPACE, SettingsError, bad
from outlast.settings.keys import Keys, to_camel
from outlast.settings.rules.code import source_files
from outlast.settings.rules.trainer import arguments_of, parser_of, source_of
from outlast.spec import bundle as bundles
from outlast.spec import delivery, identity
from outlast.spec.pin import Pin
from outlast.spec.run_spec import Argument, argv, texts_of

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
            " digits and dashes, begin with a letter and not end in a dash; set outlast:experiment"
        )
    return experiment


def args_of(args: Mapping[str, Any]) -> dict[str, Argument]:
    checked: dict[str, Argument] = {}
    for flag, value in args.items():
        if not _FLAG.fullmatch(flag):
            raise bad(
                "args",
                flag,
                "write a flag in lower case, without leading dashes, such as learning-rate",
            )
        if flag in _SET_ELSEWHERE:
            raise SettingsError(
                f"{NAMESPACE}:args {flag}: is not a hyperparameter; {_SET_ELSEWHERE[flag]}"
            )
        if not isinstance(value, bool | int | float | str):
            raise bad(f"args.{flag}", value, "must be a number, a text or true or false")
        checked[flag] = value
    return checked


def command_of(given: Keys) -> str:
    """The command as JSON, a text for the shell or a list of texts; empty if there is none."""
    text = given.command
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
    instead = {
        "trainer": "a run has a trainer or a command",
        "processes": "a command starts its own, with torchrun for example",
        "trainer_python": "write the interpreter into the command",
    }
    for name, why in instead.items():
        if not given.is_default(name):
            value = getattr(given, name)
            key = f"{NAMESPACE}:{to_camel(name)}"
            raise SettingsError(
                f"{key} {str(value)!r} beside {NAMESPACE}:command: {why}; leave out {key}"
            )
    if given.args:
        raise SettingsError(
            f"{NAMESPACE}:args beside {NAMESPACE}:command: are for a trainer; write the command's "
            "own into it"
        )
    if re.fullmatch("[0-9]+", given.checkpoint_every):
        raise bad(
            "checkpointEvery",
            given.checkpoint_every,
            "a command makes no steps; must be auto, or seconds such as 60s, the least time"
            " between two checkpoints",
        )
    return canonical_json(command).decode()


def _command_data(command: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """The data paths that `{data}` stands for in a command."""
    if "{data}" in command and not paths:
        raise bad(
            "command",
            "{data}",
            f"the run has no data; set {NAMESPACE}:dataPaths to the data's gs:// paths",
            "without it",
        )
    return paths


def content_of(
    given: Keys,
    trainer: str,
    args: Mapping[str, Argument],
    command: str,
    git: delivery.Git | None,
) -> dict[str, Any]:
    """The content that names the run, checked by the trainer's own parser even if the run is
    pinned. A trainer outside of the checkout is not executed here: its flags count as written.
    """
    pin = Pin.parse(given.init) if given.init else None
    init = None if pin is None else {"path": pin.path, "blake3": pin.digest}
    if command or git or given.source:
        try:
            source = git.source if git else identity.files_digest(source_files(given.source))
        except bundles.BundleError as error:
            raise SettingsError(f"{NAMESPACE}:source {error}") from None
        spec = identity.Spec(
            trainer=trainer if command else _own_module(trainer),
            arguments={"command": json.loads(command)}
            if command
            else {"argv": argv(texts_of(args))},
            source=source,
            data=_command_data(command, given.data_paths) if command else (),
            init=init,
            rerun=given.rerun,
            requirements=_requirements_of(given, git),
        )
        return identity.content(spec)
    parser = parser_of(trainer)
    flags = {
        option.removeprefix("--")
        for action in parser._actions  # argparse has no public list of them.
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
                rerun=given.rerun,
                requirements=_requirements_of(given, git),
            )
        )
    except identity.IdentityError as error:
        raise SettingsError(
            f"{NAMESPACE}:args of trainer {trainer}: {error}; run python -m outlast.trainers"
            f" {trainer} --help for the rules"
        ) from None


def _requirements_of(given: Keys, git: delivery.Git | None) -> str:
    """What stands for the user's requirements in the run's name; empty for none."""
    if not given.requirements:
        return ""
    from outlast.settings.rules import packages

    return packages.digest(given, git)


def _own_module(name: str) -> str:
    try:
        return delivery.check_module(name)
    except delivery.DeliveryError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None


def check_init(given: Keys, command: str) -> None:
    """Refuses another run's checkpoint for a command."""
    if given.init and command:
        raise SettingsError(
            f"{NAMESPACE}:init beside {NAMESPACE}:command: is for a trainer; let the command read"
            " the other run's result"
        )
