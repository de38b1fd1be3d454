"""Rules for the data that a VM reads, and for the paths in a trainer's flags."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.settings.errors import NAMESPACE, SettingsError, bad
from outlast.settings.formats import GS_PATH
from outlast.spec import identity
from outlast.spec.run_spec import Argument


def dests_of(flags: argparse.ArgumentParser | Mapping[str, Any]) -> dict[str, str]:
    """The name that each flag sets, from its parser, or from the flag if the parser cannot be
    called.
    """
    if not isinstance(flags, argparse.ArgumentParser):
        return {flag: flag.replace("-", "_") for flag in flags}
    return {
        option.removeprefix("--"): action.dest
        for action in flags._actions
        for option in action.option_strings
    }


def check_paths(
    dests: Mapping[str, str],
    args: Mapping[str, Argument],
    bucket: str,
    prefix: str,
    data_paths: Sequence[str],
) -> None:
    """Refuses paths in the trainer's flags that the VM could not read or write. `bucket` is
    `gs://…/`, `prefix` the experiment's below it."""
    for flag, value in args.items():
        if dests[flag] in ("data", "eval_data") and value != "":
            _check_data(flag, str(value), bucket, prefix, data_paths)
        elif dests[flag] == "model_output_path" and value != "":
            _check_output(flag, str(value), bucket + prefix)


def check_public(public: Sequence[str], data_paths: Sequence[str]) -> None:
    """Refuses public data that is not named as data."""
    for path in public:
        if path not in data_paths:
            raise bad("publicData", path, f"must be one of {NAMESPACE}:dataPaths", "to one of them")


def _check_data(flag: str, path: str, bucket: str, prefix: str, data_paths: Sequence[str]) -> None:
    if not path.startswith("gs://"):
        raise SettingsError(
            f"{NAMESPACE}:args {flag} {path!r}: a VM cannot read files of this machine; copy it to"
            f" {bucket}data/ (gcloud storage cp --recursive) and give its gs:// path, or leave it"
            " out"
        )
    if not GS_PATH.fullmatch(path):
        raise bad(f"args.{flag}", path, "must be gs://BUCKET/PATH, an object or a folder")
    folders = [f"{bucket}data/", bucket + prefix, *(f"{one.rstrip('/')}/" for one in data_paths)]
    if path not in data_paths and not any(f"{path}/".startswith(one) for one in folders):
        raise SettingsError(
            f"{NAMESPACE}:args {flag} {path!r}: the VM may not read it; add it, or a folder above"
            f" it, to {NAMESPACE}:dataPaths, or copy it to {bucket}data/"
        )


def _check_output(flag: str, path: str, own: str) -> None:
    first = path.removeprefix(own).partition("/")[0]
    taken = identity.RUN_PATTERN.fullmatch(first) or first in ("bundles", "environments")
    if not GS_PATH.fullmatch(path) or not path.startswith(own) or taken:
        raise SettingsError(
            f"{NAMESPACE}:args {flag} {path!r}: the VM writes only below {own}, and there not into"
            f" a run's folder, bundles/ or environments/; give a path such as {own}models/first"
        )
