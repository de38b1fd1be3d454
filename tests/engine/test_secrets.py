"""Secrets of all kinds: what is searched is everything that a run leaves, on its VM, in the bucket,
in the state and its backups, in the process list, and in what the commands print.

A trainer's secret goes from Secret Manager to the trainer alone. Secrets that are merely near, in
the operator's shell, beside the source, or in the stack's file, go nowhere.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.layout import AttemptEnd
from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.engine.conftest import (
    Project,
    Watch,
    checkout_on,
    disk_files,
    environments,
    holding,
    until,
)
from tests.supervisor.test_announcements import load_example, serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TOKEN = "w4ndb-key+of/a-test=0123456789"

HOOK_TOKEN, HOOK_KEY = "T9hook-address-5f1c", "the-messages-key-8d2e"
IN_SHELL = {
    "HF_TOKEN": "hf_" + "Qz7w" * 9,
    "WANDB_API_KEY": "0badcafe" * 5,
    "AWS_SECRET_ACCESS_KEY": "Kd8/" * 10,
    "GITHUB_TOKEN": "ghp_" + "mN4v" * 10,
    "DATABASE_URL": "postgres://me:pAssW0rd-7731@db.invalid/data",
}
BESIDE = {
    "code/.env": "OPENAI_API_KEY=sk-proj-" + "Rt5y" * 8,
    "code/.netrc": "machine h.invalid login me password nEtRc-pass-4410",
    "code/data-service-account.json": '{"private_key_id": "' + "d1e2f3a4" * 5 + '"}',
    "code/.aws/credentials": "aws_secret_access_key = " + "Lp2+" * 10,
    ".env": "GIT_TOKEN=glpat-" + "Bv6n" * 6,
}
SEALED = "a-value-that-only-pulumi-may-decrypt-3302"
COMMANDS = (
    "status dev --json",
    "list --json",
    "logs dev",
    "doctor dev --json",
    "costs dev --json",
    "report dev -o page.html",
    "report dev --json",
    "audit --json",
    "preview dev --json",
)

SCRIPT = """
import base64, hashlib, os, pathlib, subprocess, sys, time, urllib.parse
key = os.environ["WANDB_API_KEY"]
cut = len(key) // 2
for stream in (sys.stdout, sys.stderr):
    stream.write("whole " + key + "\\nin two " + key[:cut]); stream.flush(); time.sleep(0.3)
    stream.write(key[cut:] + "\\n"); stream.flush()
    print("basic", base64.b64encode(("user:" + key).encode()).decode(), file=stream)
    print("url https://h/?k=" + urllib.parse.quote_plus(key), file=stream)
subprocess.run(["sh", "-c", 'echo "child $WANDB_API_KEY"'])
print("variables", dict(os.environ), "files", [str(path) for path in pathlib.Path().rglob("*")])
pathlib.Path(os.environ["LOG_DIR"], "debug.log").write_text("login with " + key + "\\n")
digest = hashlib.sha256(key.encode()).hexdigest()
pathlib.Path(os.environ["RESULT_DIR"], "digest").write_text(digest)
proceed = pathlib.Path({proceed!r})
while not proceed.exists():
    time.sleep(0.1)
if proceed.read_text() == "die":
    sys.exit("401 Unauthorized for key " + key)
"""


def keep(local: clouds.LocalCloud, name: str, *values: str) -> str:
    """A secret with these versions; its path in the local cloud."""
    secrets = f"/secretmanager/v1/projects/{clouds.PROJECT}/secrets"
    local.call("POST", f"{secrets}?secretId={name}", {"replication": {"automatic": {}}})
    for value in values:
        payload = {"payload": {"data": base64.b64encode(value.encode()).decode()}}
        local.call("POST", f"{secrets}/{name}:addVersion", payload)
    return f"{secrets}/{name}"


@pytest.fixture
def stack(
    parts: engines.Parts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Project]:
    local = clouds.start(tmp_path / "cloud", parts, dies_with_us=True)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", local.url)
    made = checkout_on(local, parts, tmp_path)
    (made.folder / "code").mkdir()
    script = SCRIPT.replace("{proceed!r}", repr(str(tmp_path / "go-on")))
    (made.folder / "code/train.py").write_text(script)
    made.configure(command="python3 train.py", source="code", secretEnv={"WANDB_API_KEY": "wandb"})
    yield made
    local.stop()


@pytest.fixture
def planted(stack: Project) -> Mapping[str, str]:
    """What each file or variable near the stack holds that is a secret."""
    stack.env |= IN_SHELL
    for name, text in BESIDE.items():
        (stack.folder / name).parent.mkdir(exist_ok=True)
        (stack.folder / name).write_text(text + "\n")
    stack.pulumi("config", "set", "-s", "dev", "--secret", "other:token", SEALED)
    beside = {
        name: text.split()[-1].rpartition("=")[2].strip('"}') for name, text in BESIDE.items()
    }
    return {**IN_SHELL, **beside, "other:token": SEALED}


def forms(value: str) -> list[bytes]:
    """A secret as it is, and as it is within any base64."""
    coded = [
        base64.b64encode(b"x" * shift + value.encode())[4 * bool(shift) : -4] for shift in range(3)
    ]
    return [value.encode(), *coded]


def assert_nowhere(stack: Project, folder: Path, planted: Mapping[str, str]) -> None:
    """What is planted is where it was planted, and nowhere else; no command prints a secret."""
    for name, value in {**planted, "hook": HOOK_TOKEN, "key": HOOK_KEY}.items():
        where = holding(folder, *forms(value))
        own = [stack.folder / name] if name in BESIDE else []
        if name in ("hook", "key"):
            # Base64 is how Secret Manager's own file has it.
            own = [path for path in where if path.is_relative_to(folder / "cloud/secrets")]
            assert own, name
        assert where == own, (name, where)
    for words in COMMANDS:
        # An audit and a doctor find something; it is enough that they say what.
        finds = words.startswith(("audit", "doctor"))
        said = stack.outlast(*words.split(), fails=None if finds else False)
        assert said.strip(), words
        for value in (TOKEN, HOOK_TOKEN, HOOK_KEY, *planted.values()):
            assert not [form for form in forms(value) if form in said.encode()], words
    assert "WANDB_API_KEY" in (stack.folder / "page.html").read_text()


def assert_hidden(stack: Project, folder: Path, *but: Path) -> None:
    """Secret Manager alone holds the token, in whatever form, and the files named."""
    where = [path for path in holding(folder, *forms(TOKEN)) if path not in but]
    # Base64 is how Secret Manager's own file has it.
    assert all(path.is_relative_to(folder / "cloud/secrets") for path in where), where
    exported = stack.pulumi("stack", "export", "-s", "dev", "--show-secrets")
    assert TOKEN not in exported and "outlast-secret-env" in exported


@pytest.fixture
def received(stack: Project) -> Iterator[list[dict[str, Any]]]:
    """The messages of the stack's webhook, which are signed with a key that is a secret."""
    messages: list[dict[str, Any]] = []
    with serving(load_example().server(HOOK_KEY.encode(), messages.append)) as url:
        keep(stack.cloud, "hook", f"{url}?token={HOOK_TOKEN}")
        keep(stack.cloud, "hook-key", f"{HOOK_KEY}\n")
        stack.configure(webhookSecret="hook", webhookKeySecret="hook-key")
        yield messages


def test_a_secret_reaches_the_trainer_and_nothing_else(
    stack: Project,
    tmp_path: Path,
    received: list[dict[str, Any]],
    planted: Mapping[str, str],
):
    secret = keep(stack.cloud, "wandb", "an-old-key", TOKEN + "\n")
    stack.up()
    store: Store = open_store("gs://outlast-rehearsal-outlast")
    run = Watch(stack, store)
    until(lambda: disk_files(tmp_path / "cloud", "digest"), "the trainer has begun")
    # While it trains: its own tree has the variable, the supervisor has not, and no words show it.
    holders = environments(TOKEN.encode())
    assert holders
    for process in holders:
        words = (Path("/proc") / process / "cmdline").read_bytes()
        assert TOKEN.encode() not in words and b"outlast.supervisor" not in words, words
    until(lambda: list(store.list(f"{run.layout.attempts}")), "records")
    # What a trainer writes by itself is on its VM's disk as it wrote it, and masked in the bucket.
    assert_hidden(stack, tmp_path, *disk_files(tmp_path / "cloud", "debug.log"))
    (tmp_path / "go-on").write_text("end")
    run.wait_until_gone()
    assert [message["event"] for message in received] == ["done"]
    end = run.done().end
    assert end is not None and end.result is not None
    found = store.get(end.result.path + "digest")[0].decode()
    assert found == hashlib.sha256(TOKEN.encode()).hexdigest()
    names = [item.path for item in store.list(run.layout.attempts)]
    logs = b"".join(store.get(name)[0] for name in names if "/log" in name)
    assert logs.count(b"whole ***\n") == 2
    # The two streams are one log, so one may write between the other's two halves.
    halves = TOKEN[: len(TOKEN) // 2].encode(), TOKEN[len(TOKEN) // 2 :].encode()
    assert logs.count(b"in two ") == 2 and not any(half in logs for half in halves)
    assert b"child ***" in logs and b"login with ***" in logs
    # A VM's disk goes shortly after the VM.
    until(lambda: not disk_files(tmp_path / "cloud", "debug.log"), "the disk has gone")
    assert_nowhere(stack, tmp_path, planted)
    assert_hidden(stack, tmp_path)
    exported = stack.pulumi("stack", "export", "-s", "dev")
    assert not [name for name, value in planted.items() if value in exported]

    # The VM may read this one secret, and has no other right on it.
    policy = stack.cloud.call("GET", f"{secret}:getIamPolicy")
    assert [binding["role"] for binding in policy["bindings"]] == [
        "roles/secretmanager.secretAccessor"
    ]


def test_a_secret_in_a_trainers_error_message_is_masked(stack: Project, tmp_path: Path):
    keep(stack.cloud, "wandb", TOKEN)
    (tmp_path / "go-on").write_text("die")
    stack.up()
    store: Store = open_store("gs://outlast-rehearsal-outlast")
    run = Watch(stack, store)
    head = run.wait_until_gone()
    assert head is not None and head.state is State.FAILED
    end = AttemptEnd.from_json(store.get(run.layout.attempt_end(1))[0])
    assert "401 Unauthorized for key ***" in end.message
    assert any("key ***" in line for line in end.stderr)
    until(lambda: not disk_files(tmp_path / "cloud", "debug.log"), "the disk has gone")
    assert_hidden(stack, tmp_path)
    assert TOKEN not in stack.outlast("status", "dev", "--json")


def test_a_secret_that_is_missing_or_disabled_is_refused_and_ends_a_run_clearly(
    stack: Project, tmp_path: Path
):
    said = stack.pulumi("preview", "-s", "dev", fails=True)
    assert "outlast:secretEnv.WANDB_API_KEY" in said and "there is no such secret" in said
    assert "gcloud secrets create wandb" in said
    secret = keep(stack.cloud, "wandb", TOKEN)
    stack.cloud.call("POST", f"{secret}/versions/1:disable", {})
    said = stack.pulumi("preview", "-s", "dev", fails=True)
    assert "is disabled, and the VM needs an enabled one; enable it: gcloud secrets" in said
    # Where it is disabled only after the review, the next VM ends the run at once, by its name.
    stack.cloud.call("POST", f"{secret}/versions/1:enable", {})
    stack.up()
    run = Watch(stack, open_store("gs://outlast-rehearsal-outlast"))
    until(lambda: disk_files(tmp_path / "cloud", "digest"), "the trainer has begun")
    stack.cloud.call("POST", f"{secret}/versions/1:disable", {})
    (vm,) = stack.cloud.vms()
    stack.cloud.act(vm["name"], "preempt")
    head = run.wait_until_gone()
    assert head is not None and head.state is State.FAILED and head.term == 2
    assert head.end is not None and head.end.reason is Reason.USAGE
    end = AttemptEnd.from_json(run.store.get(run.layout.attempt_end(2))[0])
    named = f"secretEnv.WANDB_API_KEY projects/{clouds.PROJECT}/secrets/wandb/versions/latest"
    assert end.message.startswith(f"{named}: is disabled or destroyed")


def test_a_value_set_with_secret_is_refused_before_it_is_stored(stack: Project):
    keep(stack.cloud, "wandb", TOKEN)
    for path, remedy in (
        ("outlast:webhook", "outlast:webhookSecret"),
        ("outlast:args.token", "outlast:secretEnv"),
    ):
        stack.pulumi("config", "set", "-s", "dev", "--path", "--secret", path, f"x{TOKEN}")
        said = stack.pulumi("preview", "-s", "dev", fails=True)
        key = path.partition(".")[0]
        assert f"{key}: is set with --secret" in said and remedy in said
        assert TOKEN not in said
        stack.pulumi("config", "rm", "-s", "dev", key)
