"""A trainer that runs as its own user on a VM: what it tries and may not, by refusal, and that it
trains, is killed, resumes and ends with the bytes of a run that was not disturbed."""

import base64
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.bucket.layout import AttemptStart
from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests import git_host
from tests.engine.conftest import Project, Watch, checkout_on, until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's"),
]

TOKEN = "deploy-token-of-a-test-0123456789"
STEPS = 300
SCRIPT = Path(__file__).with_name("trainer_view.py")


@pytest.fixture
def stack(
    parts: engines.Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    local = clouds.start(tmp_path / "cloud", parts, dies_with_us=True)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", local.url)
    secrets = f"/secretmanager/v1/projects/{clouds.PROJECT}/secrets"
    local.call("POST", f"{secrets}?secretId=deploy", {"replication": {"automatic": {}}})
    payload = {"payload": {"data": base64.b64encode(TOKEN.encode()).decode()}}
    local.call("POST", f"{secrets}/deploy:addVersion", payload)
    yield checkout_on(local, parts, tmp_path)
    local.stop()


def undisturbed() -> str:
    digest = ""
    for step in range(1, STEPS + 1):
        digest = hashlib.sha256(f"{step} {digest}".encode()).hexdigest()
    return digest


def test_a_trainer_without_rights_trains_but_reaches_nothing_else(stack: Project, tmp_path: Path):
    repository = tmp_path / "hosted/code"
    repository.mkdir(parents=True)
    shutil.copy(SCRIPT, repository / "train.py")
    commit = git_host.commit(repository, {"README": "theirs\n"})
    with git_host.serving(tmp_path / "hosted", TOKEN) as host:
        stack.configure(
            command=f"python3 train.py {STEPS} {TOKEN.encode().hex()}",
            trainerUser="own",
            delivery="git",
            gitUrl=f"{host.url}/code",
            gitCommit=commit,
            gitSecret="deploy",
        )
        stack.up()
        store: Store = open_store("gs://outlast-rehearsal-outlast")
        run = Watch(stack, store)
        until(lambda: run.step, "a commit")
        (vm,) = stack.cloud.vms()
        stack.cloud.act(vm["name"], "kill")
        head = run.done()
        run.wait_until_gone()
        assert host.users
    assert head.end is not None and head.end.result is not None and head.term >= 2
    assert store.get(head.end.result.path + "model")[0].decode() == undisturbed()
    resumed = b"".join(
        store.get(item.path)[0] for item in store.list(f"{run.layout.attempts}{head.term:06d}/log/")
    )
    assert b"begins at step " in resumed and b"begins at step 0 " not in resumed

    start = AttemptStart.from_json(store.get(run.layout.attempt_start(head.term))[0])
    assert start.spec["trainer_user"] == "own" and start.spec["has_own_user"] is True
    # Of the killed VM no file in LOG_DIR was kept: it was killed within its first minute.
    lines = store.get(run.layout.log_file(head.term, "view.txt"))[0].decode().splitlines()
    print(*lines, sep="\n")
    assert lines[0].startswith("id: uid=61000 gid=61000 groups=61000"), lines[0]
    assert {"NoNewPrivs: 1", "CapEff: 0000000000000000"} <= set(lines)
    assert not [line for line in lines if line.startswith("ALLOWED")], lines
    assert len([line for line in lines if line.startswith("refused")]) == 19
    assert lines[-1].endswith(": none"), lines[-1]
