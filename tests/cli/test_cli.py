"""The command line: mistakes give one sentence and the right exit code, never a traceback."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

OUTLAST = [sys.executable, "-m", "outlast.cli"]


def outlast(*args: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OUTLAST, *args], capture_output=True, text=True, timeout=60, check=False, **kwargs
    )


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["reherse"], 64, "No such command 'reherse'"),
        (["rehearse", "--epochs", "0"], 64, "0 is not in the range x>=1"),
        (["rehearse", "--epochs", "many"], 64, "'many' is not a valid integer range"),
        (["rehearse", "--limit-rows", "-3"], 64, "-3 is not in the range"),
        (["rehearse", "--max-cost", "nan"], 64, "nan is not a finite number"),
        (["stop", "first", "--timeout-minutes", "nan"], 64, "nan is not a finite number"),
        (["wait", "first", "--timeout-minutes", "inf"], 64, "inf is not in the range"),
        (["rehearse", "--scenario", "zombi"], 64, "did you mean zombie?"),
        (["rehearse", "--scenario", "gone.yaml"], 64, "scenario gone.yaml: no such file"),
        (["rehearse", "--stack", "gone"], 64, "--stack gone: there is no Pulumi.gone.yaml"),
        (["rehearse", "--data", "gs://b/data=gone"], 64, "gone is not a folder"),
        (["status", "Dev"], 64, "'Dev': is not an experiment, folder or gs:// path"),
        (["status", "./first"], 64, "first: no such folder; name the folder that"),
        (["checkpoints", "runs/first"], 64, "runs/first: no such folder; name the folder that"),
        (["checkpoints", __file__], 64, "test_cli.py: is not a folder; name the folder"),
        (["resume", "Dev"], 64, "experiment 'Dev': must match"),
        (["cloud", "start", "--port", "70000"], 64, "70000 is not in the range"),
        (["preview", "--policy-pack-config", "none.json"], 64, "none.json: No such file"),
        (["preview", "--markdown", "--json"], 64, "--markdown and --json: print one of them"),
        (["train"], 64, "command: is missing; write it after --, as in outlast train --"),
        (["train", "python", "train.py"], 64, "python train.py: is not an option of outlast train"),
        (
            ["train", "--checkpoint-quiet-sec", "0", "--", "true"],
            64,
            "must be a number of seconds above 0",
        ),
        (["train", "--checkpoint-every", "5", "--", "true"], 64, "must be auto, or seconds"),
        (["train", "--shell", "--", "echo", "a"], 64, "takes one line; put it into quotes"),
        (["train", "--data", "gone", "--", "true"], 64, "--data gone: no such file or folder"),
        (["mark"], 64, "mark: is for a command that outlast runs"),
    ],
)
def test_a_mistyped_call_is_one_sentence_and_exit_64(args, code, sentence):
    done = outlast(*args)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "call",
    [["stop"], ["status"], *([verb, "vm"] for verb in ("kill", "preempt", "freeze", "thaw"))],
)
def test_without_a_local_cloud_every_call_names_the_one_that_starts_it(call, tmp_path: Path):
    done = outlast("cloud", *call, "--state", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        f"outlast: local cloud: none is running on {tmp_path}; start one: outlast cloud start.\n"
    )


@pytest.mark.parametrize("call", [["list"], ["status", "dev"], ["audit"], ["doctor"]])
def test_after_cloud_stop_every_call_says_so(call, tmp_path: Path):
    (tmp_path / "Pulumi.yaml").write_text("name: mine\nruntime: python\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        stopped = f"http://127.0.0.1:{taken.getsockname()[1]}"
        env = {**os.environ, "STORAGE_EMULATOR_HOST": stopped, "OUTLAST_BUCKET": "runs"}
        done = outlast(*call, cwd=tmp_path, env={**env, "GOOGLE_CLOUD_PROJECT": "my-project"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"outlast: the local cloud of this shell (STORAGE_EMULATOR_HOST {stopped}) is stopped:"
        ' nothing answers there; start one: eval "$(outlast cloud start)"\n'
    )


def test_help_loads_no_engine_and_no_client_library():
    code = (
        "import sys; from outlast.cli.app import cli; cli(['--help'], standalone_mode=False);"
        "print(sorted(m for m in ('pulumi', 'google.cloud.storage', 'rich', 'yaml', 'numpy')"
        " if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("call", [["--list"], ["--scenario", "list"]])
def test_the_named_scenarios_are_listed_with_their_sentences(call):
    done = outlast("rehearse", *call, "--json")
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert listed["baseline"] == "Nothing goes wrong."
    assert "storm" in listed


def test_ctrl_c_in_the_middle_of_the_imports_is_one_line(tmp_path: Path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    done = outlast("status", "dev", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "outlast: interrupted\n")


@pytest.mark.parametrize("command", ["up", "destroy"])
@pytest.mark.parametrize("flag", ["--yes", "-y"])
def test_pulumis_yes_is_accepted_but_not_in_the_help(command: str, flag: str):
    done = outlast(command, flag, "--help")
    assert (done.returncode, done.stderr) == (0, "") and "--yes" not in done.stdout


ENGINE = """\
#!/bin/bash
case "$1 $2" in
"stack export") echo '{"deployment": {}}' ;;
"stack import") ;;
"up --yes")
  trap 'echo finished; exit 1' INT
  echo started
  while true; do sleep 0.05; done
  ;;
esac
"""


def test_ctrl_c_leaves_the_engine_the_time_to_end_in_order(tmp_path: Path):
    engine = tmp_path / "pulumi"
    engine.write_text(textwrap.dedent(ENGINE))
    engine.chmod(0o755)
    process = subprocess.Popen(
        [*OUTLAST, "up", "dev"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, error = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "finished\n")
    assert error.strip() == "outlast: interrupted; everything it started has ended"
