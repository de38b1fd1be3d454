"""Every command that README and the guides show is run by a test, or parsed by its own program.

A command that no line here knows fails: run it, or name the test that does.
"""

import contextlib
import importlib
import io
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click
import pytest

from outlast.cli.app import cli
from outlast.loop.command.__main__ import parser as train_parser
from outlast.loop.command.errors import CommandError
from tests.cli.called import command_of
from tests.tools import gcloud_words
from tests.tools.gcloud_words import Unknown
from tests.tools.shown import PROGRAMS, Shown, commands, simple
from tests.tools.test_docs import ROOT

RUN_BY = {
    "outlast --version": ("tests/engine/test_wheel.py", '"outlast", "--version"'),
    "outlast checkpoints": ("tests/trainers/test_hostile_results.py", '"checkpoints"'),
    "outlast cloud freeze": ("tests/cli/test_cloud.py", 'cloud("freeze"'),
    "outlast cloud kill": ("tests/cli/test_cloud.py", 'cloud("kill"'),
    "outlast cloud preempt": ("tests/cli/test_cloud.py", 'cloud("preempt"'),
    "outlast cloud start": ("tests/cli/test_cloud.py", 'cloud("start"'),
    "outlast cloud start --guest": ("tests/cli/test_guest_image.py", '"start", "--guest", "vm"'),
    "outlast audit": ("tests/engine/test_program.py", 'outlast("audit"'),
    "outlast audit --remove": ("tests/cli/audit/test_audit.py", '"--remove", "--yes"'),
    "outlast cloud start --provider": ("tests/cli/test_cloud.py", 'cloud("start", "--provider"'),
    "outlast cloud status": ("tests/cli/test_cloud.py", 'cloud("status"'),
    "outlast cloud stop": ("tests/cli/test_cloud.py", 'cloud("stop"'),
    "outlast costs": ("tests/bucket/test_hostile_folder.py", '"costs"'),
    "outlast costs --all": ("tests/cli/test_costs.py", '"costs", "--all"'),
    "outlast costs --refresh-prices": ("tests/cli/test_price_refresh.py", '"--refresh-prices"'),
    "outlast data ls": ("tests/cli/test_data.py", '"data", "ls"'),
    "outlast data push": ("tests/cli/test_data.py", '"data", "push"'),
    "outlast destroy": ("tests/engine/test_changes.py", 'outlast("destroy", "dev"'),
    "outlast dev pull": ("tests/engine/test_dev.py", 'outlast("dev", "pull"'),
    "outlast dev sync": ("tests/engine/test_dev.py", '"dev", "sync", "dev"'),
    "outlast doctor": ("tests/cli/doctor/test_doctor.py", '["doctor"]'),
    "outlast fetch": ("tests/cli/test_fetch.py", 'outlast("fetch", where)'),
    "outlast fetch --best": ("tests/cli/test_fetch.py", '"fetch", str(trained / "run"), "--best"'),
    "outlast fetch --curves": ("tests/cli/exports/test_extras.py", '"--curves"'),
    "outlast fetch --notebook": ("tests/cli/exports/test_extras.py", '"--notebook"'),
    "outlast fetch --tensorboard": ("tests/cli/exports/test_extras.py", '"--tensorboard"'),
    "outlast handover": ("tests/engine/test_renamed.py", 'stack.outlast("handover"'),
    "outlast handover --to": ("tests/cli/test_handover_into.py", '"--to", new.url'),
    "outlast init": ("tests/engine/test_wheel.py", '"outlast", "init", "demo"'),
    "outlast inspect": ("tests/cli/test_inspect.py", 'outlast("inspect", str(trained))'),
    "outlast list": ("tests/cli/test_overview.py", 'outlast("list"'),
    "outlast list --json": ("tests/cli/test_overview.py", '"list", "--json"'),
    "outlast list --mine": ("tests/cli/test_overview.py", 'outlast("list", "--mine"'),
    "outlast logs": ("tests/cli/test_logs.py", 'outlast("logs", "first")'),
    "outlast logs --attempt": ("tests/cli/test_logs.py", '"--attempt", "1"'),
    "outlast logs --boot": ("tests/cli/test_logs.py", '"--boot"'),
    "outlast logs --follow": ("tests/cli/test_logs.py", '"--follow"'),
    "outlast mark": ("tests/engine/trainer_view.py", '"outlast", "mark"'),
    "outlast preview": ("tests/program/test_stack_changes.py", 'outlast("preview", "dev"'),
    "outlast preview --json": ("tests/cli/test_preview.py", "as_json"),
    "outlast preview --markdown": ("tests/cli/test_preview.py", "markdown"),
    "outlast preview --policy-pack-config": ("tests/cli/test_preview.py", "read_config("),
    "outlast prune": ("tests/cli/prune/test_prune.py", '["prune", *words]'),
    "outlast prune --bundles": ("tests/cli/prune/test_prune.py", "bundles"),
    "outlast prune --environments": ("tests/cli/prune/test_prune.py", "environments"),
    "outlast prune --keep-results": ("tests/cli/prune/test_prune.py", "keep_results=True"),
    "outlast prune --older-than": ("tests/cli/prune/test_prune.py", '"--older-than"'),
    "outlast recover": ("tests/engine/test_bake_killed.py", 'outlast("recover", "dev"'),
    "outlast rehearse --guest": ("tests/guest/test_rehearsal.py", '"rehearse", "--guest", "vm"'),
    "outlast rehearse --guest-image": ("tests/cli/test_guest_image.py", '"--guest-image"'),
    "outlast rehearse": ("tests/cli/test_rehearse.py", '"rehearse"'),
    "outlast rehearse --clean-up": ("tests/cli/test_rehearse_on_google.py", '"--clean-up"'),
    "outlast rehearse --data": ("tests/scenarios/test_played.py", '"--data"'),
    "outlast rehearse --epochs": ("tests/cli/test_rehearse.py", 'SHORT = ("--epochs"'),
    "outlast rehearse --limit-rows": ("tests/scenarios/test_played.py", '"--limit-rows"'),
    "outlast rehearse --list": ("tests/cli/test_cli.py", '"--list"'),
    "outlast rehearse --on": ("tests/cli/test_rehearse_on_google.py", '"--on", "google"'),
    "outlast rehearse --probes-only": ("tests/cli/test_rehearse_on_google.py", '"--probes-only"'),
    "outlast rehearse --project": ("tests/cli/test_rehearse_on_google.py", '"--project"'),
    "outlast rehearse --scenario": ("tests/cli/test_rehearse.py", '"--scenario"'),
    "outlast rehearse --stack": ("tests/scenarios/test_played.py", '"--stack"'),
    "outlast repair": ("tests/cli/test_cloud.py", 'outlast("repair", "dev"'),
    "outlast report": ("tests/cli/report/test_page.py", 'outlast("report", run)'),
    "outlast report --sweep": ("tests/cli/report/test_sweep.py", '("lr", "--sweep")'),
    "outlast resume": ("tests/engine/test_changes.py", 'outlast("resume", "dev"'),
    "outlast resume --from": ("tests/cli/test_rewind.py", '"--from"'),
    "outlast run": ("tests/cli/test_run.py", 'outlast("run", "first"'),
    "outlast run --destroy": ("tests/engine/test_changes.py", '"run", "dev", "--destroy"'),
    "outlast status": ("tests/engine/test_changes.py", 'outlast("status", "dev"'),
    "outlast ssh": ("tests/cli/test_ssh.py", "ssh.session("),
    "outlast stop": ("tests/cli/test_stop.py", '"stop", "dev"'),
    **{
        f"outlast sweep {command}": ("tests/cli/sweep/test_commands.py", f'("{command}", ')
        for command in ("ask", "destroy", "leaderboard", "preview", "tell", "up")
    },
    "outlast sweep ask --params": ("tests/cli/sweep/test_commands.py", '"--params"'),
    "outlast sweep fetch": ("tests/cli/sweep/test_commands.py", '"fetch", "lr"'),
    "outlast sweep fetch --best": ("tests/cli/sweep/test_commands.py", '"fetch", "lr", "--best"'),
    "outlast sweep leaderboard --every": ("tests/cli/sweep/test_leaderboard.py", "every=True"),
    "outlast sweep tell --json": ("tests/cli/sweep/test_commands.py", '"--json"'),
    "outlast sweep tell --wait": ("tests/cli/sweep/test_commands.py", '"--wait"'),
    "outlast sweep up --base": ("tests/cli/sweep/test_commands.py", '"--base"'),
    "outlast sweep up --grid": ("tests/cli/sweep/test_commands.py", '"--grid"'),
    "outlast train": ("tests/cli/test_failures.py", '"train", "--run-dir"'),
    "outlast train --checkpoint-dir": ("tests/loop/test_command_work.py", '"--checkpoint-dir"'),
    "outlast train --checkpoint-quiet-sec": (
        "tests/loop/test_legacy_script.py",
        '"--checkpoint-quiet-sec"',
    ),
    "outlast train --run-dir": ("tests/cli/test_failures.py", '"--run-dir"'),
    "outlast up": ("tests/engine/test_changes.py", 'outlast("up", "dev"'),
    "outlast up --latest": ("tests/engine/test_deliveries.py", '"up", "dev", "--latest"'),
    "outlast wait": ("tests/cli/test_watching.py", '"wait", "first"'),
    "outlast wait --timeout-minutes": ("tests/cli/test_watching.py", '"--timeout-minutes"'),
    "outlast wait --notify": ("tests/cli/test_notifying.py", '"--notify"'),
    "outlast watch --notify": ("tests/cli/test_notifying.py", '"--notify"'),
    "outlast watch": ("tests/cli/test_watching.py", '"watch", "first"'),
    "pulumi destroy": ("tests/cli/test_cloud.py", 'pulumi("destroy"'),
    "pulumi login": ("tests/engine/test_commands_shown.py", '"login"'),
    "pulumi package": ("tests/engine/test_component_package.py", '"package", "get-schema"'),
    "pulumi preview": ("tests/engine/test_changes.py", 'pulumi("preview"'),
    "pulumi preview --expect-no-changes": (
        "tests/engine/test_program.py",
        '"--refresh", "--expect-no-changes"',
    ),
    "pulumi preview --policy-pack": ("tests/engine/test_preview.py", '"--policy-pack"'),
    "pulumi preview --refresh": ("tests/engine/test_shared_bucket.py", '"preview", "--refresh"'),
    "pulumi stack rename": ("tests/engine/test_renamed.py", '"stack", "rename"'),
    "pulumi up --stack": ("tests/engine/test_foundation.py", '"up"'),
    "pulumi up": ("tests/cli/test_cloud.py", 'pulumi("up"'),
    "pulumi up --refresh": ("tests/engine/test_program.py", '"--refresh"'),
    "python -m outlast.localcloud check": (
        "tests/localcloud/scenarios/test_scenario.py",
        '["check"',
    ),
    "python -m outlast.trainers": ("tests/trainers/test_laptop.py", '"outlast.trainers"'),
    "python -m outlast.trainers --help": ("tests/trainers/test_bad_input.py", '"--help"'),
    "python -m outlast.trainers --mode": ("tests/trainers/test_laptop.py", '"--mode", "eval"'),
    "python -m outlast.trainers --run-dir": ("tests/trainers/test_laptop.py", "--run-dir"),
    "python -m outlast.trainers --epochs": ("tests/trainers/test_laptop.py", '"--epochs"'),
    "python examples/own_trainer.py": ("tests/loop/adapters/test_example.py", "own_trainer.py"),
    "python train.py": ("tests/loop/test_legacy_script.py", '"train.py"'),
    "python train/mine.py": ("tests/tools/test_blocks.py", '"mine.py"'),
    "torchrun": ("tests/loop/test_torchrun.py", "torch.distributed.run"),
}
"""A command with one of its options, and where it is run: a file, and its content."""

CONFIGURED = ("pulumi config set", "pulumi config rm", "pulumi stack init", "pulumi stack rm")
"""All of these run one after another in tests/engine/test_commands_shown.py."""

SIGNING_IN = ("gcloud auth", "git clone", "git host")
SHELL = {"cd", "mkdir", "printf", "read", "source", "ssh-keyscan", "tee", "wc"}
"""Run with the block that they stand in, or change the reader's own shell only."""

ALL = commands()


def of(program: str) -> list[Shown]:
    found = [one for one in ALL if one.words[0].rpartition("/")[2] == program]
    assert found, f"no page shows a command of {program}"
    return found


def is_by_name(one: Shown, names: Sequence[str]) -> bool:
    return f"{' '.join(one.words)} ".startswith(tuple(f"{name} " for name in names))


def keys(one: Shown) -> list[str]:
    """The keys of RUN_BY for this command: its name, and its name with each of its options."""
    program, *words = one.words
    options: list[str] = []
    if program == "outlast":
        name, options = _outlast(words)
    elif program == "torchrun":
        name = program
    elif program == "python":
        words = [word for word in words if word != "-P"]
        size = (2 if words[1] == "outlast.trainers" else 3) if words[0] == "-m" else 1
        name = " ".join([program, *words[:size]])
        options = [word for word in words[size:] if word.startswith("--")] if size > 1 else []
        options = [] if "supervisor" in name else options
    else:
        size = 2 if words[0] in ("stack", "config") else 1
        name = " ".join([program, *words[:size]])
        options = [word for word in words[size:] if word.startswith("--")]
    return [name, *(f"{name} {option}" for option in options)]


def _outlast(words: list[str]) -> tuple[str, list[str]]:
    words = words[: words.index("--")] if "--" in words else words
    size = 2 if words[0] in ("cloud", "data", "dev", "sweep") else 1
    options = [word for word in words[size:] if word.startswith("--") and word != "--help"]
    return " ".join(["outlast", *words[:size]]), options


def test_every_command_is_known() -> None:
    for one in ALL:
        program = one.words[0].rpartition("/")[2]
        assert program in {*PROGRAMS, *SHELL}, f"{one}: no test knows this program"
    assert len(ALL) > 150


@pytest.mark.parametrize("program", ["outlast", "pulumi", "python", "torchrun"])
def test_every_command_is_run_by_a_test_that_is_named(program: str) -> None:
    for one in of(program):
        if is_by_name(one, CONFIGURED):
            continue
        for key in keys(one):
            assert key in RUN_BY, f"{one}: no test is named that runs `{key}`"


@pytest.mark.parametrize("key", RUN_BY)
def test_the_test_that_is_named_is_there(key: str) -> None:
    file, text = RUN_BY[key]
    assert text in (ROOT / file).read_text(), f"{file}: has no {text} any more"
    shown = {known for one in ALL if one.words[0] in PARSED for known in keys(one)}
    assert key in shown, f"{key}: no page shows it any more; take it out"


PARSED = ("outlast", "pulumi", "python", "torchrun")


def test_every_command_of_outlast_is_parsed_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "mnist").mkdir()
    (tmp_path / "limits.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for one in of("outlast"):
        name, *words = one.words[1:]
        words = [name, *words]
        command = command_of(words)
        if words == ["--version"]:
            continue
        assert command is not cli, one
        if command.name == "train":
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
                train_parser().parse_known(words[: _dashes(words)])  # `--help` ends it
        elif command.name != "mark":
            meant = {"FILE": "/dev/null", "./mine.yaml": "/dev/null", "STEP": "400"}
            words = [meant.get(word, word) for word in words]
            # A name alone, as in a sentence, is not all of the command.
            needs = [arg.human_readable_name for arg in command.params if _is_needed(arg)]
            command.make_context(command.name, words or needs)


def _dashes(words: list[str]) -> int:
    return words.index("--") if "--" in words else len(words)


def _is_needed(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument) and parameter.required


def trainers(name: str, words: Sequence[str]) -> None:
    """Parses them as the trainer does; raises Unknown."""
    parser = importlib.import_module(f"outlast.trainers.{name}").parser()

    def refuse(message: str) -> NoReturn:
        raise Unknown(message)

    parser.error = refuse
    parser.parse_args(list(words))


def test_every_command_of_a_trainer_is_parsed_by_it() -> None:
    seen = 0
    for one in of("python"):
        words = [word for word in one.words[1:] if word != "-P"]
        if words[:2] == ["-m", "outlast.trainers"] and words[2] != "NAME":
            trainers(words[2], words[3:])
            seen += 1
    assert seen > 2


def test_every_target_of_make_is_run_dry() -> None:
    for target in {one.words[1] for one in of("make")}:
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"make {target}: {done.stderr}"


def test_every_extra_to_install_is_declared() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    built = (ROOT / "tests/engine/test_wheel.py").read_text()
    for one in of("pip"):
        if is_by_name(one, ["pip wheel --no-deps -w dist .", "pip install dist/outlast-*.whl"]):
            assert '"wheel", "--quiet", "--no-deps"' in built and '"install"' in built
            continue
        named = re.fullmatch(r"(?:\.|outlast)\[(\w+)\]", one.words[-1])
        assert one.words[1] == "install" and named and named[1] in extras, one


def test_the_option_of_uv_is_one() -> None:
    program = Path(shutil.which("uv") or ROOT / ".venv/bin/uv")
    for one in of("uv"):
        asked = [program, *[word for word in one.words[1:] if word[0] != "-"], "--help"]
        known = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert all(word in known for word in one.words if word.startswith("--")), one


def test_the_loop_that_fetches_data_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/machines.md").read_text()
    (loop,) = re.findall(r"^mkdir -p mnist\nfor .*?^done$", text, re.M | re.S)
    (tmp_path / "there").mkdir()
    files = re.findall(r"[a-z0-9]+-[a-z]+-idx\d", loop)
    assert len(files) == 4
    for name in files:
        (tmp_path / "there" / f"{name}-ubyte.gz").write_bytes(b"x")
    local = loop.replace(
        "https://storage.googleapis.com/cvdf-datasets/mnist", f"file://{tmp_path}/there"
    )
    assert local != loop
    subprocess.run(["bash", "-ec", local], cwd=tmp_path, check=True, timeout=60)
    assert len([*(tmp_path / "mnist").iterdir()]) == 4
    assert all(is_by_name(one, ["curl --fail --silent --show-error"]) for one in of("curl"))


def test_git_is_only_asked_for_a_checkout_and_its_commit() -> None:
    for one in of("git"):
        assert is_by_name(one, [*SIGNING_IN, "git -C ../code rev-parse HEAD"]), one


# gcloud


def test_every_command_of_gcloud_follows_its_grammar() -> None:
    for one in of("gcloud"):
        gcloud_words.parse(_whole(one))


@pytest.mark.parametrize(
    "slip",
    [
        "compute instances lst",
        "compute instances list --projectx p",
        "services enable",
        "storage cp one",
        "secrets create",
        "secrets versions add name --data-file",
    ],
)
def test_a_slip_in_a_command_of_gcloud_is_found(slip: str) -> None:
    with pytest.raises(gcloud_words.Unknown):
        gcloud_words.parse(slip.split())


def _whole(one: Shown) -> list[str]:
    """With the arguments that a sentence leaves out."""
    words = list(one.words[1:])
    short = {"storage cp": ["A", "B"], "compute instance-groups managed list-instances": ["G"]}
    return [*words, *short.get(" ".join(words), [])]


@pytest.mark.rehearsal
@pytest.mark.timeout(300)
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_itself_takes_every_command(tmp_path: Path) -> None:
    lines = sorted({shlex.join(["gcloud", *_switches_last(_whole(one))]) for one in of("gcloud")})
    file = tmp_path / "commands.json"
    file.write_text(json.dumps([{"command_string": line} for line in lines]))
    done = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}"],
        env={
            "PATH": f"{Path(shutil.which('gcloud') or '').parent}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "CLOUDSDK_CONFIG": str(tmp_path / "config"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = json.loads(done.stdout)
    assert len(found) == len(lines) > 10
    for one in found:
        assert one["success"], f"{one['command_string']}: {one['error_message']}"


def _switches_last(words: list[str]) -> list[str]:
    """gcloud's linter takes the word behind a flag for its value."""
    switches = gcloud_words.COMMANDS[gcloud_words.parse(words)].switches
    return sorted(words, key=lambda word: word in switches)


def test_a_line_is_taken_apart_as_a_shell_does() -> None:
    line = 'read -rs KEY && printf %s "$KEY" | gcloud secrets versions add wandb --data-file=-'
    assert [words[0] for words in simple(line)] == ["read", "printf", "gcloud"]
    assert list(simple('eval "$(outlast cloud start)"  # here'))[0] == ("outlast", "cloud", "start")


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(click.UsageError):
        command_of(["rehearse"]).make_context("rehearse", ["dev"])
    with pytest.raises(CommandError):
        train_parser().parse_known(["--no-such"])
    with pytest.raises(Unknown):
        trainers("digits", ["--no-such"])
