"""A command on a VM: the supervisor as a process, cut and preempted, the command resumed."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.base.exits import Reason, State
from outlast.bucket.layout import StopRequest
from outlast.spec.run_spec import NO_DEADLINE, RunSpec
from outlast.supervisor import on_vm
from outlast.supervisor.code import Code
from outlast.supervisor.environment import layers
from tests.supervisor.fake_cloud import fake_cloud
from tests.supervisor.test_main import LAYOUT, Machines, wait_until

SCRIPT = """#!/bin/sh
# Counts; the file it counts in is all it knows of checkpoints.
place="$CHECKPOINT_DIR/place"
i="$(cat "$place" 2>/dev/null || echo 0)"
echo "begins at $i in attempt $ATTEMPT of $RUN_ID" >&2
echo "$OUTPUT_URI" >"$LOG_DIR/uri"
while [ "$i" -lt "$1" ]; do
  i=$((i + 1))
  echo "$i" >"$place.tmp" && mv "$place.tmp" "$place"
  outlast mark
  printf '%s\\r' "$i" >&2
  while [ "$i" -ge "$(cat "$GATE")" ]; do sleep 0.05; done
done
python --version >"$RESULT_DIR/python"
echo "$i" >"$RESULT_DIR/count"
exit "$2"
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked bundle with a command's files and requirements in it, and no trainer."""
    folder = tmp_path_factory.mktemp("bundle")
    ignored = shutil.ignore_patterns("__pycache__", "cli", "localcloud")
    shutil.copytree(Path(outlast.__file__).parent, folder / "outlast", ignore=ignored)
    for name in ("source", "requirements"):
        (folder / name).mkdir()
    (folder / "source" / "count.sh").write_text(SCRIPT)
    (folder / "requirements" / "user.txt").write_text("keras\n")
    return folder


class CommandMachines(Machines):
    """VMs whose run is a command; its gate is the count at which it waits."""

    def boot(self, **changes: Any) -> "subprocess.Popen[bytes]":
        programs = self.root(len(self.processes)) / "var/lib/outlast/user-venv/bin"
        programs.mkdir(parents=True)
        (programs / "python").write_text("#!/bin/sh\necho the user\\'s own $*\n")
        (programs / "python").chmod(0o755)
        # It is whole, as an earlier boot of this machine has left it.
        needs = layers(self.bundle / "requirements" / "user.txt")
        (programs.parent / ".complete").write_text(" ".join(layer.key for layer in needs))
        return super().boot(**changes)

    def boot_command(self, *words: str, gate: int = 1000):
        self.gate.write_text(f"{gate}\n")
        command = json.dumps(["./count.sh", *words])
        environment = {"GATE": str(self.gate)}
        spec = {"outlast-trainer": "command", "outlast-checkpoint-every": "auto"}
        return self.boot(**spec, **{"outlast-command": command}, **environment)

    def boot_line(self, line: str, **options: object):
        """A VM whose run is a line for the shell, with options as ``outlast:…`` settings give."""
        attributes = {
            "outlast-trainer": "command",
            "outlast-command": json.dumps(line),
            "outlast-checkpoint-every": "auto",
            "outlast-checkpoint-quiet-sec": "1",
        }
        if options:
            named = {key.replace("_", "-"): value for key, value in options.items()}
            attributes["outlast-command-options"] = json.dumps(named)
        return self.boot(**attributes, FLAGS=str(self.folder))

    def cut(self, index: int) -> None:
        """SIGKILL for all that runs on the machine."""
        for pid in {self.processes[index].pid, *processes_of(self.root(index))}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes_of(self.root(index)), "the end of the machine")

    def result(self) -> dict[str, bytes]:
        head = self.head
        assert head.end is not None and head.end.result is not None
        path = head.end.result.path
        own = {"RESULT.json", "MANIFEST.json"}
        names = {item.path.removeprefix(path) for item in self.store.list(path)} - own
        return {name: self.store.get(path + name)[0] for name in names}


@pytest.fixture
def machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path
) -> Iterator[CommandMachines]:
    with fake_cloud(monkeypatch) as cloud:
        machines = CommandMachines(cloud, tmp_path, bundle)
        try:
            yield machines
        finally:
            machines.close()


def processes_of(folder: Path) -> list[int]:
    """Whatever runs with this folder in its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if bytes(folder) in environment and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def test_a_checkpoints_own_path_is_the_same_on_each_machine(machines: CommandMachines) -> None:
    """As `best_model_checkpoint` of a Trainer, which is read after a resume."""
    line = (
        "[ -e $CHECKPOINT_DIR/path ] || { echo $CHECKPOINT_DIR > $CHECKPOINT_DIR/path;"
        " outlast mark; sleep 600; }; cp $CHECKPOINT_DIR/path $RESULT_DIR/first;"
        " echo $CHECKPOINT_DIR > $RESULT_DIR/second"
    )
    machines.boot_line(line)
    wait_until(lambda: bool(machines.committed()), "a commit")
    machines.cut(0)
    assert machines.boot_line(line).wait(60) == 0
    result = machines.result()
    # Each of the test's machines has its own folder for /.
    paths = [
        Path("/") / Path(result[name].decode().strip()).relative_to(machines.root(number))
        for number, name in enumerate(("first", "second"))
    ]
    assert paths[0] == paths[1] and paths[0].is_absolute()


def test_a_command_is_killed_stopped_and_finished(machines: CommandMachines) -> None:
    """SIGKILL of the whole machine, then SIGTERM to its system, then to the end."""
    machines.boot_command("6", "0", gate=2)
    wait_until(lambda: 2 in machines.committed(), "a commit")
    machines.cut(0)

    second = machines.boot_command("6", "0", gate=4)
    wait_until(lambda: 4 in machines.committed(), "a commit")
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 75
    assert machines.is_off(1) and not processes_of(machines.root(1))
    end = machines.end_of(2)
    assert (end.reason, end.exit, end.committed) == (Reason.INTERRUPTED, 75, 4)
    assert "begins at 2 in attempt 2 of 0123456789" in end.stderr

    third = machines.boot_command("6", "0")
    assert third.wait(60) == 0
    head = machines.head
    assert head.state is State.DONE and head.end is not None and head.end.step == 6
    assert machines.result() == {"count": b"6\n", "python": b"the user's own --version\n"}
    end = machines.end_of(3)
    assert "begins at 4 in attempt 3 of 0123456789" in end.stderr
    assert end.stderr[-1] != "5\r6\r"  # a progress bar's last state alone
    logs = [item.path for item in machines.store.list("experiments/first/0123456789/attempts/")]
    uri = next(path for path in logs if path.endswith("000003/logs/uri"))
    assert machines.store.get(uri)[0].decode().endswith("experiments/first/0123456789/output\n")


def test_a_command_hands_over_its_last_checkpoint_when_the_run_is_stopped(
    machines: CommandMachines,
) -> None:
    vm = machines.boot_command("6", "0", gate=4)
    wait_until(lambda: 4 in machines.committed(), "a commit")
    request = StopRequest(0, 60.0, machines.store.now())
    machines.store.put(LAYOUT.stop_request(0), request.to_json(), if_generation_match=0)
    assert vm.wait(60) == 0
    assert (machines.head.state, machines.head.step) == (State.STOPPED, 4)
    end = machines.end_of(1)
    assert (end.reason, end.step, end.committed) == (Reason.STOPPED, 4, 4)
    assert not processes_of(machines.root(0)) and machines.cloud.groups["group"] == []


def test_a_commands_failure_ends_the_run_with_its_own_exit_code(machines: CommandMachines) -> None:
    machine = machines.boot_command("2", "41")
    assert machine.wait(60) == 0
    head = machines.head
    assert (head.state, head.end and head.end.exit) == (State.FAILED, 41)
    end = machines.end_of(1)
    assert (end.reason, end.exit) == (Reason.USER_FAILED, 41)
    assert end.message == "the trainer exited with 41: 2"  # the last of its stderr
    assert end.stderr[-1] == "2"


def test_a_missing_program_is_bad_usage(machines: CommandMachines) -> None:
    machine = machines.boot(
        **{"outlast-trainer": "command", "outlast-command": '["trian.py"]'},
        **{"outlast-checkpoint-every": "auto"},
    )
    assert machine.wait(60) == 0
    end = machines.end_of(1)
    assert (end.reason, end.exit) == (Reason.USAGE, 64)
    assert "command 'trian.py': no such program on the PATH or in " in end.message


def test_a_command_does_not_use_the_supervisors_interpreter(machines: CommandMachines) -> None:
    line = json.dumps("command -v python >$RESULT_DIR/count; env >$RESULT_DIR/python")
    machine = machines.boot(
        **{"outlast-trainer": "command", "outlast-command": line},
        **{"outlast-checkpoint-every": "auto"},
        PATH=os.environ["PATH"],
    )
    assert machine.wait(60) == 0
    result = machines.result()
    assert str(machines.bundle) not in result["python"].decode()
    assert "OUTLAST_SOCKET" not in result["python"].decode()
    assert str(sys.executable) not in result["python"].decode()


def test_a_trainer_uses_the_users_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_ROOT", "/vm")
    spec = RunSpec(
        prefix="p", run="0", resume=0, placement=0, owner="o", trainer="dummy", deadline=NO_DEADLINE
    )
    assert on_vm.argv_of(spec, Code())[0] == sys.executable
    own = "/vm/var/lib/outlast/user-venv/bin"
    code = Code(tmp_path / "source", "train", Path(own))
    words = on_vm.argv_of(spec, code)
    assert words[0] == f"{own}/python"
    assert words[-1] == f"{tmp_path}/source/train/dummy"  # a trainer of the delivered folder
    command = replace(spec, command="python train.py", data=("gs://b/rows/",))
    words = on_vm.argv_of(command, code)
    assert "--data=gs://b/rows/" in words
    assert words[0] == sys.executable  # the runner's; the command finds its own on its PATH
    assert words[words.index("--programs") + 1] == own
    assert words[words.index("--source") + 1] == f"{tmp_path}/source"
    assert words[words.index("--folder") + 1] == "train"
    assert words[-3:] == ["--shell", "--", "python train.py"]


# -- What counts as an end, and as a checkpoint, set as a stack sets it


def test_a_crash_before_a_pipe_fails_the_run(machines: CommandMachines) -> None:
    machine = machines.boot_line("sh -c 'exit 5' 2>&1 | tee $RESULT_DIR/log.txt")
    assert machine.wait(60) == 0
    head, end = machines.head, machines.end_of(1)
    assert (head.state, end.reason, end.exit) == (State.FAILED, Reason.USER_FAILED, 5)


@pytest.mark.parametrize("allowed", [False, True])
def test_exit_0_without_output_fails_the_run_unless_allowed(
    machines: CommandMachines, allowed: bool
) -> None:
    line = "mkdir -p logs; (exit 1) || echo died > logs/train.log"
    machine = machines.boot_line(line, **({"allow-no-output": True} if allowed else {}))
    assert machine.wait(60) == 0
    head, end = machines.head, machines.end_of(1)
    if allowed:
        assert (head.state, end.reason) == (State.DONE, Reason.DONE)
        assert machines.result()["logs/train.log"] == b"died\n"
    else:
        assert (head.state, end.reason) == (State.FAILED, Reason.NO_OUTPUT)
        assert "outlast:allowNoOutput" in end.message


def test_a_model_beside_the_script_is_the_result(machines: CommandMachines) -> None:
    """As pytorch/examples mnist --save-model: nothing is written if it would be kept."""
    line = "echo m > mnist_cnn.pt; mkdir __pycache__ venv; touch __pycache__/a.pyc venv/pyvenv.cfg"
    machine = machines.boot_line(line)
    assert machine.wait(60) == 0
    assert machines.head.state is State.DONE
    assert machines.result() == {"mnist_cnn.pt": b"m\n"}
    assert "so it starts from scratch after each interruption" in log_of(machines)


def test_a_result_that_is_too_large_keeps_the_machine(machines: CommandMachines) -> None:
    line = "head -c 3000000 /dev/zero > model.pt"
    machine = machines.boot_line(line, **{"result-gb": 0.002})
    wait_until(lambda: "the machine stays for 3600 s" in machines.serial(0), "a machine that stays")
    head, end = machines.head, machines.end_of(1)
    assert (head.state, end.reason) == (State.FAILED, Reason.RESULT_TOO_LARGE)
    assert "3.0 MB, more than the 2.0 MB" in end.message and "model.pt (3.0 MB)" in end.message
    assert machine.poll() is None and not machines.is_off(0)
    (model,) = machines.root(0).rglob("model.pt")
    assert model.stat().st_size == 3_000_000 and str(model.parent) in end.message


OUT = """
mkdir -p out; n=$(cat out/n.pt 2>/dev/null || echo 0); echo "begins after $n: $*" >&2
while [ $n -lt 3 ]; do
  n=$((n + 1)); echo $n > out/n.tmp; mv out/n.tmp out/n.pt; echo "step $n" >> out/n.txt
  while [ $n -ge 2 ] && [ ! -e $FLAGS/finish ]; do sleep 0.1; done
done
"""


def test_a_scripts_own_checkpoint_folder_is_restored(machines: CommandMachines) -> None:
    """`outlast:checkpointDir`, globs and {latest:…}: cut, then to the end."""
    options = {"checkpoint-dir": "out", "checkpoint": ["*.pt"], "log": ["*.txt"]}
    line = f"set -- --resume {{latest:.pt}}; {OUT}"
    machines.boot_line(line, **options)
    wait_until(machines.committed, "a commit")
    machines.cut(0)
    (machines.folder / "finish").touch()
    second = machines.boot_line(line, **options)
    assert second.wait(60) == 0
    assert machines.head.state is State.DONE
    home = machines.root(1) / "var/lib/outlast/command/source/out"
    assert f"begins after 2: --resume {home}/n.pt" in "\n".join(machines.end_of(2).stderr)
    assert machines.result()["checkpoint/n.pt"] == b"3\n"
    assert machines.result()["checkpoint/n.txt"] == b"step 1\nstep 2\nstep 3\n"


def test_logs_alone_do_not_make_a_checkpoint_on_a_vm(machines: CommandMachines) -> None:
    """LLaMA-Factory's check: the second life finds an empty folder."""
    line = '[ -z "$(ls -A $CHECKPOINT_DIR)" ] || { echo not empty >&2; exit 1; }; '
    line += "mkdir $CHECKPOINT_DIR/runs; echo x > $CHECKPOINT_DIR/runs/events.out.tfevents.1; "
    line += "[ -e $FLAGS/finish ] && echo r > $RESULT_DIR/r && exit; sleep 600"
    machines.boot_line(line)
    wait_until(lambda: "contains only logs and by-products" in log_of(machines), "a word on it")
    assert not machines.committed()
    machines.cut(0)
    (machines.folder / "finish").touch()
    assert machines.boot_line(line).wait(60) == 0
    assert machines.head.state is State.DONE


def log_of(machines: CommandMachines, index: int = 0) -> str:
    """What the trainer has printed on a machine."""
    logs = [path for path in machines.root(index).rglob("*.log") if path.is_file()]
    return "".join(path.read_text(errors="replace") for path in logs)
