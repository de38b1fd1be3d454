"""`outlast dev` on a VM of the local cloud whose own run trains meanwhile."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.base.exits import CTRL_C, State
from outlast.bucket.head import read_head
from outlast.bucket.layout import DEVELOPMENT, Layout
from outlast.bucket.store import open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.engine.conftest import Project, Watch, checkout_on, environments, until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(300)]

OWN = "sleep 600\n"
"""The experiment's run: it commits nothing, so that only others could change its HEAD."""
MARK = b"\0OUTLAST_DEV="


class Command:
    """`outlast dev sync` in the background."""

    def __init__(self, stack: Project, output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "outlast.cli", "dev", "sync", "dev"],
                cwd=stack.folder,
                env=stack.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it where a test has failed."""
        self.process.kill()
        self.process.wait()

    @property
    def text(self) -> str:
        return self._output.read_text()

    def wait(self, text: str, count: int = 1) -> None:
        """Waits until a line has come so often."""

        def there() -> bool:
            assert self.process.poll() is None, self.text
            return self.text.splitlines().count(text) >= count

        until(there, text)

    def runs(self) -> list[str]:
        """The names of the development runs, as they were started."""
        return re.findall(rf"^outlast: run ({DEVELOPMENT}[0-9a-f]+): ", self.text, re.MULTILINE)


@pytest.fixture
def stack(cloud: clouds.LocalCloud, parts: engines.Parts, tmp_path: Path) -> Iterator[Project]:
    made = checkout_on(cloud, parts, tmp_path)
    (made.folder / "code").mkdir()
    (made.folder / "code/train.sh").write_text(OWN)
    made.configure(command='["sh", "train.sh"]', source="code", experiment="looped")
    yield made
    made.destroy()


def test_code_follows_beside_the_experiments_own_run(
    stack: Project, cloud: clouds.LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    store = open_store("gs://outlast-rehearsal-outlast")
    code = stack.folder / "code"
    stack.up()
    run = Watch(stack, store)
    head = run.layout.head
    until(
        lambda: list(store.list(run.layout.attempt(1) + "heartbeat")), "the run's first heartbeat"
    )
    before = store.stat(head)
    # Another code each time, which the run's own bundle does not have.
    (code / "train.sh").write_text(
        'echo one; . ./more.sh; echo x >"$CHECKPOINT_DIR/x"; sleep 600\n'
    )
    (code / "more.sh").write_text("echo more\n")
    (code / ".env").write_text("KEY=never leaves\n")
    with Command(stack, tmp_path / "said") as command:
        command.wait("more")
        (code / "train.sh").write_text("echo two; sleep 600\n")
        (code / "more.sh").unlink()
        command.wait("two")
        (there,) = [vm["id"] for vm in cloud.vms()]
        disk = (cloud.state / f"vms/{there}/root/root/outlast-dev/dev").resolve()
        assert sorted(path.name for path in disk.iterdir()) == ["train.sh"]
        pulled = stack.outlast("dev", "pull", "dev", "outlast-dev/dev", str(tmp_path / "pulled"))
        assert pulled.endswith("bytes in 1 file\n"), pulled
        assert (tmp_path / "pulled/train.sh").read_text() == "echo two; sleep 600\n"
        # The run's own HEAD is as it was, and each code had its own.
        assert store.stat(head) == before
        first, second = command.runs()
        for name in (first, second):
            other = read_head(store, Layout(run.layout.prefix, name)).head
            assert (other.state, other.owner) == (State.OPEN, run.outputs["owner"])
        listed = json.loads(stack.outlast("list", "--json"))
        assert not [one for one in listed if one["run"].startswith(DEVELOPMENT)]
        assert run.outputs["run"] in [one["run"] for one in listed]
        # A VM that replaces the lost one gets everything, and continues the same development run.
        (vm,) = cloud.vms()
        cloud.act(vm["name"], "kill")
        command.wait("two", count=2)
        assert command.runs()[-1] == second
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(60) == CTRL_C
        assert not environments(MARK)
    # A killed command leaves nothing either.
    with Command(stack, tmp_path / "again") as again:
        again.wait("two")
        os.kill(again.process.pid, signal.SIGKILL)
        again.process.wait()
    until(lambda: not environments(MARK), "the end of the development run")
    own = run.head
    assert own is not None and own.state is State.OPEN and own.term >= 2
