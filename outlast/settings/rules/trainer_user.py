"""Rules for `trainerUser`: what a run cannot do if its trainer has no rights on its VM."""

import json
import re
from collections.abc import Mapping
from typing import Any

from outlast.settings.errors import NAMESPACE, SettingsError
from outlast.settings.keys import Keys
from outlast.spec.run_spec import OWN

_NEEDS = {
    "sudo": "cannot gain rights",
    "docker": "may not use Docker",
    "gcloud": "gets no token of the VM's service account",
    "gsutil": "gets no token of the VM's service account",
    "bq": "gets no token of the VM's service account",
}
"""Programs that need rights which the user lacks, and why."""
_OUTPUT_URI = re.compile(r"\{output_uri\}|\$\{?OUTPUT_URI\b")


def check_trainer_user(given: Keys, command: str) -> None:
    """Refuses a command that needs rights which the trainer's own user lacks."""
    if given.trainer_user != OWN or not command:
        return
    words = json.loads(command)
    text = words if isinstance(words, str) else " ".join(words)
    if _OUTPUT_URI.search(text):
        raise _refused(
            "OUTPUT_URI",
            "gets no token of the VM's service account and cannot write to the bucket itself",
            "let it write into RESULT_DIR or CHECKPOINT_DIR",
        )
    for program, why in _NEEDS.items():
        if re.search(rf"(?:^|[\s;&|(/]){program}(?=\s|$)", text):
            raise _refused(program, why, f"leave out {program}")


def gs_paths_read(given: Keys, command: str, args: Mapping[str, Any], is_own: bool) -> list[str]:
    """A warning about a gs:// path that the user's trainer or command may try to read directly,
    which its user on the VM cannot do.
    """
    if given.trainer_user != OWN or not (command or is_own):
        return []
    texts = [command, *(value for value in args.values() if isinstance(value, str))]
    found = re.search(r"gs://[^\s\"'\\,]+", " ".join(texts))
    if found is None:
        return []
    how = f"{{data}} and {NAMESPACE}:dataPaths" if command else "outlast.data(path)"
    return [
        f"{NAMESPACE}:trainerUser own: the trainer gets no token of the VM's service account and"
        f" cannot read {found[0]} itself; give it the files by {how}"
    ]


def _refused(what: str, why: str, instead: str) -> SettingsError:
    return SettingsError(
        f"{NAMESPACE}:command uses {what}, but with {NAMESPACE}:trainerUser own the command {why};"
        f" {instead}, or set {NAMESPACE}:trainerUser to root"
    )
