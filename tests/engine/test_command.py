"""A command on VMs of the local cloud, from `pulumi up` to its result: its own files and its own
requirements, preempted in the middle, resumed from what it had marked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.base.exits import Reason
from outlast.bucket.layout import AttemptEnd, AttemptStart
from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.engine.conftest import Watch, checkout_on, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SCRIPT = """#!/bin/sh
# One line a step; it continues where its file ends.
file="$1/steps"
python -c 'import certifi, sys; print(sys.prefix, certifi.__file__)' >"$RESULT_DIR/python"
python -c 'import outlast' 2>"$RESULT_DIR/refused" && exit 3
while [ "$(cat "$file" 2>/dev/null | wc -l)" -lt 12 ]; do
  { cat "$file" 2>/dev/null; echo "attempt $ATTEMPT"; } >"$file.tmp"
  mv "$file.tmp" "$file"
  outlast mark
  sleep 0.5
done
cp "$file" "$RESULT_DIR/steps"
cat "$2/a.txt" "$DATA_DIR/b.txt" >"$RESULT_DIR/data"
"""


@pytest.fixture
def offline(parts: engines.Parts, tmp_path: Path) -> Iterator[clouds.LocalCloud]:
    """A local cloud whose VMs install from the wheels of `make setup`, and from nowhere else."""
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": parts.wheels}
    started = clouds.start(tmp_path / "cloud", parts, guest_env=env, dies_with_us=True)
    yield started
    started.stop()


def test_a_command_with_its_own_requirements_survives_a_preemption(
    offline: clouds.LocalCloud,
    parts: engines.Parts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    stack = checkout_on(offline, parts, tmp_path)
    folder = stack.folder
    (folder / "code").mkdir()
    (folder / "code" / "train.sh").write_text(SCRIPT)
    (folder / "code" / ".env").write_text("KEY=never delivered\n")
    (folder / "code" / "needs.txt").write_text("certifi\n")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", offline.url)
    uniform = {"uniformBucketLevelAccess": {"enabled": True}}  # conditions need it
    body = {"name": "lent-rows", "iamConfiguration": uniform}
    offline.call("POST", "/storage/v1/b?project=outlast-rehearsal", body)
    for name in ("a", "b"):
        open_store("gs://lent-rows").put(f"rows/{name}.txt", f"{name}\n".encode())
    stack.set("outlast:command", '["./train.sh", "{checkpoint}", "{data}"]')
    stack.set("outlast:dataPaths[0]", "gs://lent-rows/rows/")
    stack.set("outlast:source", "code")
    stack.set("outlast:requirements", "code/needs.txt")
    stack.up()
    store: Store = open_store("gs://outlast-rehearsal-outlast")
    run = Watch(stack, store)
    layout = run.layout
    until(lambda: run.step >= 2, "a commit")
    (vm,) = offline.vms()
    offline.act(vm["name"], "preempt")
    run.wait_until_gone()
    head = run.done()
    assert head.end is not None and head.end.result is not None
    assert head.term == 2
    result = {
        name: store.get(head.end.result.path + name)[0].decode()
        for name in ("data", "python", "refused", "steps")
    }
    steps = result["steps"].splitlines()
    assert len(steps) == 12
    first = steps.count("attempt 1")
    assert first >= 2 and steps == ["attempt 1"] * first + ["attempt 2"] * (12 - first)
    assert result["data"] == "a\nb\n"
    prefix, certifi = result["python"].split()
    assert prefix.endswith("/var/lib/outlast/user-venv") and certifi.startswith(prefix)
    assert "No module named 'outlast'" in result["refused"]
    end = AttemptEnd.from_json(store.get(layout.attempt_end(1))[0])
    assert (end.reason, end.exit, end.committed) == (Reason.PREEMPTED, 75, first)
    start = AttemptStart.from_json(store.get(layout.attempt_start(2))[0])
    assert start.trainer == "command" and start.step == first
    assert start.spec["command"] == ["./train.sh", "{checkpoint}", "{data}"]
