"""The cloud as a process: start, stop, restart, what it refuses, and its control API."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.localcloud.local_cloud import (
    PROJECT,
    FullCloud,
    LocalCloud,
    make_bucket,
)

ROOT = Path(__file__).parents[2]
MACHINES = Path(__file__).with_name("machines.py")
WAIT_SEC = 90.0


def wait_until(condition: object, message: str) -> None:
    deadline = time.monotonic() + WAIT_SEC
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, message
        time.sleep(0.02)


def rehearsal(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outlast.localcloud", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)


# Start and stop


def test_the_endpoint_file_exists_only_while_the_cloud_is_ready(own_cloud: LocalCloud) -> None:
    endpoint = own_cloud.state / "endpoint.json"
    document = json.loads(endpoint.read_text())
    assert document["pid"] == own_cloud.process.pid
    assert set(document) == {"pid", "port", "provider_port", "started"}
    assert own_cloud.stop() == 0
    assert not endpoint.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly_with_clients_connected(own_cloud: LocalCloud, number: int) -> None:
    bucket = make_bucket(own_cloud)
    own_cloud.add_fault("before", {"stall": True}, object="^a$")
    address = ("127.0.0.1", int(own_cloud.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=60) as waiting:
        request = f"GET /storage/v1/b/{bucket}/o/a HTTP/1.1\r\nHost: 127.0.0.1:{address[1]}\r\n\r\n"
        waiting.sendall(request.encode())
        wait_until(lambda: own_cloud.events("fault"), "the request did not arrive")
        assert own_cloud.stop(number) == 0


def test_stop_by_the_control_api(own_cloud: LocalCloud) -> None:
    assert own_cloud.call("POST", "/_local/stop").status_code == 200
    assert own_cloud.process.wait(60) == 0


def test_ends_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    command = [sys.executable, str(MACHINES), str(tmp_path / "state"), "0", str(parent.pid)]
    cloud = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "state/endpoint.json").exists, "the cloud was not ready")
        parent.kill()  # left as a zombie: that counts as ended
        assert cloud.wait(60) == 0
    finally:
        cloud.kill()
        cloud.wait()
        parent.communicate()


# Crash and restart


@pytest.fixture
def crashed(own_cloud: LocalCloud) -> Iterator[LocalCloud]:
    """A cloud killed in mid-upload, after committed writes, and started again."""
    bucket = make_bucket(own_cloud, name="kept-bucket")
    account = {"accountId": "kept-account"}
    own_cloud.call("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", json=account)
    for number in range(20):
        own_cloud.put(bucket, f"object/{number}", str(number).encode())
    own_cloud.add_fault("mid-body", {"stall": True}, object="^half$")
    address = ("127.0.0.1", int(own_cloud.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=60) as upload:
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=half"
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{address[1]}\r\n"
        head += "Content-Length: 1000\r\n\r\n"
        upload.sendall(head.encode() + b"z" * 900)
        wait_until(lambda: own_cloud.events("fault"), "the upload did not arrive")
        own_cloud.stop(signal.SIGKILL)
    own_cloud.start()
    yield own_cloud


def test_crash_loses_no_committed_object(crashed: LocalCloud) -> None:
    for number in range(20):
        media = crashed.object("GET", "kept-bucket", f"object/{number}", params={"alt": "media"})
        assert media.content == str(number).encode()
    assert crashed.object("GET", "kept-bucket", "half").status_code == 404
    assert not list((crashed.state / "storage/uploads").glob("direct-*"))
    audit = crashed.call("GET", "/_local/audit").json()
    assert audit["buckets"] == [{"name": "kept-bucket", "objects": 20, "versions": 0}]
    assert [email.partition("@")[0] for email in audit["service_accounts"]] == ["kept-account"]


def test_generations_grow_over_a_crash(crashed: LocalCloud) -> None:
    old = crashed.object("GET", "kept-bucket", "object/3").json()["generation"]
    params = {"ifGenerationMatch": old}
    new = crashed.put("kept-bucket", "object/3", b"new", params=params).json()["generation"]
    assert int(new) > int(old)


def test_a_resumable_upload_continues_after_a_crash(own_cloud: LocalCloud) -> None:
    bucket = make_bucket(own_cloud)
    data = bytes(range(256)) * 4096
    half = len(data) // 2
    path = f"/upload/storage/v1/b/{bucket}/o"
    opened = own_cloud.call("POST", path, params={"uploadType": "resumable", "name": "big"})
    query = opened.headers["location"].partition("?")[2]
    first = {"Content-Range": f"bytes 0-{half - 1}/{len(data)}"}
    sent = own_cloud.call("PUT", f"{path}?{query}", data=data[:half], headers=first)
    assert sent.status_code == 308
    own_cloud.stop(signal.SIGKILL)
    own_cloud.start()
    rest = {"Content-Range": f"bytes {half}-{len(data) - 1}/{len(data)}"}
    sent = own_cloud.call("PUT", f"{path}?{query}", data=data[half:], headers=rest)
    assert sent.status_code == 200
    assert own_cloud.object("GET", bucket, "big", params={"alt": "media"}).content == data


# What it refuses


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = rehearsal("serve", "--state", str(tmp_path), "--port", port, "--no-provider")
    assert ended.returncode == 64
    assert ended.stderr.count("\n") == 1
    assert f"--port {port}: address already in use" in ended.stderr


def test_state_folder_in_use(own_cloud: LocalCloud) -> None:
    ended = rehearsal("serve", "--state", str(own_cloud.state), "--no-provider")
    assert ended.returncode == 64
    assert f"process {own_cloud.process.pid}" in ended.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "--state"),
        (["--state", "STATE", "--image", "debian-cloud=/"], "PROJECT/FAMILY=FOLDER"),
        (["--state", "STATE", "--image", "a/b=/no/such/folder"], "must exist"),
        (["--state", "STATE", "--guest-env", "NAME"], "KEY=VALUE"),
        (["--state", "STATE", "--notice-sec", "-1"], "negative"),
        (["--state", "STATE", "--port", "99999"], "--port 99999"),
        (["--state", "STATE", "--parent-pid", "4194305"], "no such process"),
        (["--state", "/dev/null/x"], "--state /dev/null/x"),
    ],
)
def test_bad_flags(tmp_path: Path, args: list[str], says: str) -> None:
    ended = rehearsal("serve", *(str(tmp_path) if a == "STATE" else a for a in args))
    assert ended.returncode == 64
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/pubsub/v1/projects/p/topics"),
        ("DELETE", "/_local/nothing"),
        ("POST", "/storage/v1/b/x/o/watch"),
        ("PATCH", "/"),
    ],
)
def test_anything_else_is_501(cloud: LocalCloud, method: str, path: str) -> None:
    answer = cloud.call(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["status"]) == (501, "UNIMPLEMENTED")
    assert f"{method} {path}" in error["message"]


def test_loopback_only(cloud: LocalCloud) -> None:
    port = int(cloud.url.rpartition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    bound = {line[1] for line in lines if line[3] == "0A" and line[1].endswith(f":{port:04X}")}
    assert bound == {f"0100007F:{port:04X}"}


# Clients that are none


def exchange(cloud: LocalCloud, *parts: bytes, ends: bool = False) -> bytes:
    """Everything that is answered on one connection until the cloud closes it. HOST in the parts
    is the cloud's own; `ends`: we say after the parts that no more will come."""
    address = ("127.0.0.1", int(cloud.url.rpartition(":")[2]))
    answer = b""
    with socket.create_connection(address, timeout=60) as connection:
        with suppress(ConnectionError):  # refused before all was sent
            for part in parts:
                connection.sendall(part.replace(b"HOST", f"127.0.0.1:{address[1]}".encode()))
        if ends:
            with suppress(OSError):  # it has hung up already
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := connection.recv(65536):
                answer += data
    return answer


GET_PROJECT = f"GET /cloudresourcemanager/v1/projects/{PROJECT} HTTP/1.1\r\nHost: HOST\r\n".encode()
POST_BUCKET = (
    f"POST /storage/v1/b?project={PROJECT} HTTP/1.1\r\nHost: HOST\r\n"
    "Content-Type: application/json\r\n"
).encode()
CLOSE = b"Connection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(64) + b"\r\n\r\n", 400),
        (b"\r\n\r\n\0\0\0\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (GET_PROJECT + b"Content-Length: minus one\r\n\r\n", 400),
        (GET_PROJECT + b"X: " + b"y" * 200_000, 431),
        (b"GET /" + b"a" * 200_000, 431),
        (POST_BUCKET + CLOSE[:-2] + b"Content-Length: 100000000000\r\n\r\n{", 413),
        (POST_BUCKET + CLOSE[:-2] + b"Content-Length: 4\r\n\r\n\xff\xfe{}", 400),
        (POST_BUCKET + CLOSE[:-2] + b"Content-Length: 90000\r\n\r\n" + b"[" * 90000, 400),
        (POST_BUCKET + CLOSE[:-2] + b'Content-Length: 17\r\n\r\n{"name":"\\uD800"}', 400),
        (POST_BUCKET + CLOSE[:-2] + b'Content-Length: 12\r\n\r\n{"name":NaN}', 400),
        (POST_BUCKET + CLOSE[:-2] + b'Content-Length: 14\r\n\r\n{"name":1e999}', 400),
        (b"GET /storage/v1/b/%00/o/..%2f..%2f%ff HTTP/1.1\r\nHost: HOST\r\n" + CLOSE, 400),
    ],
    ids=[
        "tls",
        "zeros",
        "half-a-line",
        "length",
        "header",
        "target",
        "huge",
        "bytes",
        "deep",
        "half-a-pair",
        "no-number",
        "endless",
        "path",
    ],
)
def test_garbage_is_answered_and_the_cloud_keeps_running(
    cloud: LocalCloud, sent: bytes, status: int
) -> None:
    head, _, body = exchange(cloud, sent).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    error = json.loads(body)["error"]
    assert error["code"] == status and error["message"] and "Traceback" not in body.decode()
    assert cloud.call("GET", f"/cloudresourcemanager/v1/projects/{PROJECT}").status_code == 200


def test_garbage_in_place_of_a_second_request_ends_the_connection(cloud: LocalCloud) -> None:
    answer = exchange(cloud, GET_PROJECT + b"\r\n", b"\0\1\2\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert cloud.call("GET", f"/cloudresourcemanager/v1/projects/{PROJECT}").status_code == 200


def test_an_endless_body_is_refused_and_not_kept(cloud: LocalCloud) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    head = POST_BUCKET + b"Transfer-Encoding: chunked\r\n\r\n"
    before = memory_kb(cloud.process.pid)
    answer = exchange(cloud, head, *[chunk] * 64)
    assert answer.startswith(b"HTTP/1.1 413") or not answer  # a sender in mid-send may see a reset
    assert memory_kb(cloud.process.pid) - before < 40_000
    assert cloud.call("GET", f"/cloudresourcemanager/v1/projects/{PROJECT}").status_code == 200


@pytest.mark.parametrize(
    "head", [b"GET /nothing HTTP/1.1\r\nHost: HOST\r\n", POST_BUCKET], ids=["unread", "read"]
)
def test_a_body_that_goes_bad_is_answered_once(
    tmp_path: Path, head: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    cloud = LocalCloud(tmp_path / "state")
    try:
        answer = exchange(cloud, head + b"Transfer-Encoding: chunked\r\n\r\nno size\r\n")
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
        assert cloud.call("GET", f"/cloudresourcemanager/v1/projects/{PROJECT}").ok
    finally:
        cloud.stop()
        cloud.http.close()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["media", "multipart", "resumable"])
def test_a_body_cut_off_leaves_no_object(cloud: LocalCloud, bucket: str, kind: str) -> None:
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType={kind}&name=half"
    lines = [f"POST {path} HTTP/1.1", "Host: HOST", "Content-Length: 100000"]
    lines += ["Content-Type: multipart/related; boundary=z"] * (kind == "multipart")
    body = b"--z\r\nContent-Type: application/json\r\n\r\n{}\r\n--z\r\n\r\n" + b"y" * 5000
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    uploads = cloud.state / "storage/uploads"
    others = set(uploads.iterdir())
    exchange(cloud, head, body if kind == "multipart" else b"{" * 5000, ends=True)
    assert cloud.object("GET", bucket, "half").status_code == 404
    wait_until(lambda: others.issuperset(uploads.iterdir()), "a cut upload was kept")


@pytest.mark.parametrize(
    "name", ["../../escaped", "/etc/escaped", "a/../../../escaped", "..", ".", "%2e%2e/escaped"]
)
def test_a_name_reaches_nothing_outside_the_state(
    cloud: LocalCloud, bucket: str, name: str
) -> None:
    outside = {path for path in cloud.state.parent.iterdir() if path != cloud.state}
    answer = cloud.put(bucket, name, b"escaped")
    assert answer.status_code in (200, 400)  # `.` and `..` are no names
    if answer.status_code == 200:
        read = cloud.object("GET", bucket, name, params={"alt": "media"})
        assert read.content == b"escaped"
    assert {path for path in cloud.state.parent.iterdir() if path != cloud.state} == outside
    assert not list(cloud.state.rglob("escaped")) and not Path("/etc/escaped").exists()


def memory_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


# The control API


def test_vm_verbs(cloud: LocalCloud) -> None:
    assert cloud.call("GET", "/_local/vms").json() == []
    assert cloud.call("POST", "/_local/vms/vm-3/thaw").status_code == 200
    assert cloud.events("machine")[-1]["verb"] == "thaw"
    assert cloud.call("POST", "/_local/vms/no-such-vm/kill").status_code == 404
    assert cloud.call("POST", "/_local/vms/vm-3/tickle").status_code == 400
    assert cloud.call("POST", "/_local/switches", json={"nonsense": 1}).status_code == 400


def test_reset_forgets_everything(own_cloud: LocalCloud) -> None:
    bucket = make_bucket(own_cloud)
    own_cloud.put(bucket, "a")
    assert own_cloud.call("POST", "/_local/reset").status_code == 200
    audit = own_cloud.call("GET", "/_local/audit").json()
    assert not any(audit.values())
    assert own_cloud.object("GET", bucket, "a").status_code == 404
    assert not any((own_cloud.state / "storage/bytes").iterdir())
    assert os.path.exists(own_cloud.state / "events.jsonl")


# With VMs

COMPUTE = f"/compute/v1/projects/{PROJECT}"
ZONE = f"{COMPUTE}/zones/us-central1-a"
STARTUP = """#!/bin/bash
base="$METADATA_BASE/instance"
token="$(curl -s -H 'Metadata-Flavor: Google' "$base/service-accounts/default/token" |
  sed 's/.*"access_token": *"\\([^"]*\\)".*/\\1/')"
for n in $(seq 1000); do
  curl -s -X POST -H "Authorization: Bearer $token" --data-binary "$n" \\
    "$STORAGE_EMULATOR_HOST/upload/storage/v1/b/vm-bucket/o?uploadType=media&name=heartbeat/$$-$n"
  sleep 0.05
done
"""


PRIVILEGE = f"""#!/bin/bash
token="$(curl -s -H 'Metadata-Flavor: Google' \\
  "$METADATA_BASE/instance/service-accounts/default/token" |
  sed 's/.*"access_token": *"\\([^"]*\\)".*/\\1/')"
ask() {{
  local header="X-Nothing: x"
  if [[ "$1" != none ]]; then header="Authorization: Bearer $1"; fi
  curl -s -o /dev/null -w "answer $2 %{{http_code}}\\n" -H "$header" \\
    -X "$3" "$STORAGE_EMULATOR_HOST$4"
}}
put='/upload/storage/v1/b/vm-bucket/o?uploadType=media&name='
for who in token none wrong; do
  case "$who" in token) with="$token" ;; none) with=none ;; wrong) with=made-up ;; esac
  ask "$with" "$who-own-bucket" POST "$put$who"
  ask "$with" "$who-other-bucket" GET /storage/v1/b/other-bucket/o
  ask "$with" "$who-policy" GET /storage/v1/b/vm-bucket/iam
  ask "$with" "$who-groups" GET {ZONE}/instanceGroupManagers
  ask "$with" "$who-delete" DELETE {ZONE}/instanceGroupManagers/group
  ask "$with" "$who-control" POST /_local/reset
done
echo asked everything
sleep 600
"""


@pytest.fixture
def vm_cloud(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCloud]:
    """A whole cloud with a group of one VM, which writes objects without end unless the test gives
    another startup script."""
    startup = getattr(request, "param", STARTUP)
    state = tmp_path / "state"
    image = tmp_path / "image"
    image.mkdir()
    cloud = LocalCloud(
        state,
        *("-m", "outlast.localcloud", "serve", "--no-provider", "--state", str(state)),
        *("--image", f"debian-cloud/debian-13={image}"),
    )
    try:
        make_bucket(cloud, name="vm-bucket")
        make_bucket(cloud, name="other-bucket")
        accounts = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
        account = cloud.call("POST", accounts, json={"accountId": "the-trainer"}).json()["email"]
        path = "/storage/v1/b/vm-bucket/iam"
        policy = cloud.call("GET", path).json()
        role = {"role": "roles/storage.objectUser", "members": [f"serviceAccount:{account}"]}
        policy["bindings"].append(role)
        assert cloud.call("PUT", path, json=policy).status_code == 200
        disk = {
            "boot": True,
            "autoDelete": True,
            "initializeParams": {
                "sourceImage": "projects/debian-cloud/global/images/family/debian-13",
            },
        }
        template = {
            "name": "template",
            "properties": {
                "machineType": "e2-small",
                "disks": [disk],
                "networkInterfaces": [{"network": "global/networks/default"}],
                "metadata": {"items": [{"key": "startup-script", "value": startup}]},
                "serviceAccounts": [
                    {"email": account, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
                ],
            },
        }
        answer = cloud.call("POST", f"{COMPUTE}/global/instanceTemplates", json=template)
        assert answer.status_code == 200, answer.text
        group = {
            "name": "group",
            "baseInstanceName": "trainer",
            "targetSize": 1,
            "versions": [{"instanceTemplate": "global/instanceTemplates/template"}],
        }
        answer = cloud.call("POST", f"{ZONE}/instanceGroupManagers", json=group)
        assert answer.status_code == 200, answer.text
        yield cloud
    finally:
        cloud.stop()
        cloud.http.close()


def heartbeats(cloud: LocalCloud) -> set[str]:
    page = cloud.call("GET", "/storage/v1/b/vm-bucket/o", params={"prefix": "heartbeat/"}).json()
    return {item["name"].partition("/")[2].partition("-")[0] for item in page.get("items", [])}


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists()]


@pytest.mark.rehearsal
def test_fault_kills_the_vm_that_sent_the_request(vm_cloud: LocalCloud) -> None:
    vm_cloud.add_fault("before", {"kill_vm": True}, object="^heartbeat/", nth=3)
    wait_until(lambda: vm_cloud.events("fault"), "no object of the VM arrived")
    assert vm_cloud.events("fault")[0]["vm"].startswith("trainer-")
    assert vm_cloud.events("fault-missed") == []
    wait_until(lambda: len(heartbeats(vm_cloud)) == 2, "the group did not recreate the VM")


@pytest.mark.rehearsal
@pytest.mark.parametrize("vm_cloud", [PRIVILEGE], indirect=True, ids=["privilege"])
def test_a_vm_may_do_what_its_service_account_may(vm_cloud: LocalCloud) -> None:
    def said() -> str:
        (vm,) = vm_cloud.call("GET", "/_local/vms").json()
        path = f"{ZONE}/instances/{vm['name']}/serialPort"
        return vm_cloud.call("GET", path).json().get("contents", "")

    wait_until(lambda: "asked everything" in said(), "the VM did not ask everything")
    lines = [line.split() for line in said().splitlines()]
    answers = {line[1]: line[2] for line in lines if line[:1] == ["answer"]}
    others = ("other-bucket", "policy", "groups", "delete", "control")
    expected = {f"{who}-{what}": "403" for who in ("token", "none") for what in others}
    expected |= {"token-own-bucket": "200", "none-own-bucket": "200"}
    # A token that was not issued has no owner, though it comes from the VM.
    expected |= {f"wrong-{what}": "401" for what in ("own-bucket", *others)}
    assert answers == expected
    # The same without a token from outside of the VMs is the owner's.
    assert vm_cloud.call("GET", f"{ZONE}/instanceGroupManagers").status_code == 200


@pytest.mark.rehearsal
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_vms_die_with_the_cloud(vm_cloud: LocalCloud, number: int) -> None:
    wait_until(lambda: heartbeats(vm_cloud), "no object of the VM arrived")
    pids = vm_cloud.call("GET", "/_local/audit").json()["pids"]
    assert len(alive(pids)) >= 2
    vm_cloud.stop(number)
    wait_until(lambda: not alive(pids), "processes of a VM outlived the cloud")


@pytest.mark.rehearsal
def test_reset_kills_vms_and_the_cloud_keeps_serving(vm_cloud: LocalCloud) -> None:
    wait_until(lambda: heartbeats(vm_cloud), "no object of the VM arrived")
    pids = vm_cloud.call("GET", "/_local/audit").json()["pids"]
    assert vm_cloud.call("POST", "/_local/reset").status_code == 200
    assert not alive(pids)
    assert not any(vm_cloud.call("GET", "/_local/audit").json().values())
    make_bucket(vm_cloud)


BAKE = """#!/bin/bash
mkdir -p "$OUTLAST_ROOT/opt/tool"
if [[ -e "$OUTLAST_ROOT/opt/tool/baked" ]]; then
  echo "boots from what was baked"
  cat "$OUTLAST_ROOT/opt/tool/baked"
  [[ "$(<"$OUTLAST_ROOT/opt/tool/path")" == "$OUTLAST_ROOT" ]] && echo "knows its root"
  exit
fi
cat "$OUTLAST_ROOT/etc/hostname" >"$OUTLAST_ROOT/opt/tool/baked"
printf '%s' "$OUTLAST_ROOT" >"$OUTLAST_ROOT/opt/tool/path"
while [[ ! -e "$OUTLAST_ROOT/var/tmp/done" ]]; do sleep 0.05; done
poweroff
"""


@pytest.mark.rehearsal
def test_a_disk_becomes_an_image_and_a_vm_boots_from_it(tmp_path: Path) -> None:
    cloud = FullCloud(tmp_path / "state")

    def insert(name: str, image: str) -> None:
        disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}
        body = {
            "name": name,
            "machineType": "zones/us-central1-a/machineTypes/e2-small",
            "disks": [disk],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "metadata": {"items": [{"key": "startup-script", "value": BAKE}]},
        }
        cloud.ok("POST", f"{ZONE}/instances", body)

    def status(name: str) -> str:
        return cloud.ok("GET", f"{ZONE}/instances/{name}")["status"]

    def family() -> str:
        return cloud.ok("GET", f"{COMPUTE}/global/images/family/tool")["name"]

    def bake(name: str) -> dict[str, Any]:
        source = f"projects/{PROJECT}/zones/us-central1-a/disks/builder"
        body = {"name": name, "family": "tool", "sourceDisk": source}
        return cloud.call("POST", f"{COMPUTE}/global/images", json=body).json()

    try:
        insert("builder", f"projects/{PROJECT}/global/images/family/outlast")
        wait_until(lambda: list(cloud.state.glob("vms/*/root/opt/tool/path")), "nothing is baked")
        refused = bake("tool-1")["error"]
        assert refused["code"] == 400 and "already being used by" in refused["message"]
        (root,) = cloud.state.glob("vms/*/root")
        (root / "var/tmp/done").touch()
        wait_until(lambda: status("builder") == "TERMINATED", "the builder did not power off")
        assert "error" not in bake("tool-1") and family() == "tool-1"
        assert "error" not in bake("tool-2") and family() == "tool-2"
        cloud.ok("POST", f"{COMPUTE}/global/images/tool-2/deprecate", {"state": "DEPRECATED"})
        assert family() == "tool-1"
        cloud.ok("DELETE", f"{ZONE}/instances/builder")

        # Images outlast the process of the cloud.
        cloud.stop(signal.SIGKILL)
        cloud.start()
        insert("user", f"projects/{PROJECT}/global/images/family/tool")
        path = f"{ZONE}/instances/user/serialPort"
        wait_until(
            lambda: "Finished running" in cloud.ok("GET", path)["contents"], "it did not boot"
        )
        page = cloud.ok("GET", path)
        said = page["contents"].splitlines()
        more = cloud.ok("GET", path, params={"start": page["next"]})
        assert (more["contents"], more["start"]) == ("", page["next"])
        assert cloud.ok("GET", path, params={"start": "-5"})["contents"] == page["contents"][-5:]
        assert cloud.ok("GET", path, params={"port": 2})["contents"] == ""
        for bad in ({"start": "soon"}, {"port": "0"}):
            assert cloud.call("GET", path, params=bad).status_code == 400
        assert {"boots from what was baked", "builder", "knows its root"} <= set(said)
    finally:
        cloud.stop()
        cloud.http.close()


# With the engine's provider adapter


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in tasks for child in file.read_text().split()]


def listeners(pid: int) -> set[str]:
    """The addresses that a process listens on, as the kernel writes them."""
    links = (os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink())
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    tables = (Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6", "udp", "udp6"))
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    bound = {line[1].partition(":")[0] for line in lines if line[9] in inodes and line[3] != "01"}
    return bound


LOOPBACK = {"0100007F", "0" * 16 + "FFFF00000100007F", "0" * 24 + "01000000"}


@pytest.mark.rehearsal
def test_nothing_is_reachable_from_another_machine(vm_cloud: LocalCloud, tmp_path: Path) -> None:
    wait_until(lambda: heartbeats(vm_cloud), "no object of the VM arrived")
    assert listeners(vm_cloud.process.pid) == {"0100007F"}  # the metadata servers too
    state = tmp_path / "with-provider"
    cloud = LocalCloud(state, "-m", "outlast.localcloud", "serve", "--state", str(state))
    try:
        (provider,) = children(cloud.process.pid)
        assert listeners(provider) and listeners(provider) <= LOOPBACK
    finally:
        cloud.stop()
        cloud.http.close()


@pytest.mark.rehearsal
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_provider_lives_and_dies_with_the_cloud(tmp_path: Path, number: int) -> None:
    state = tmp_path / "state"
    cloud = LocalCloud(state, "-m", "outlast.localcloud", "serve", "--state", str(state))
    try:
        port = json.loads((state / "endpoint.json").read_text())["provider_port"]
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
        pids = children(cloud.process.pid)
        assert pids
        cloud.stop(number)
        wait_until(lambda: not alive(pids), "the provider adapter outlived the cloud")
    finally:
        cloud.stop()
        cloud.http.close()


@pytest.mark.rehearsal
def test_cloud_ends_when_the_provider_is_gone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    cloud = LocalCloud(state, "-m", "outlast.localcloud", "serve", "--state", str(state))
    try:
        for pid in children(cloud.process.pid):
            os.kill(pid, signal.SIGKILL)
        assert cloud.process.wait(60) == 1
        assert not (state / "endpoint.json").exists()
    finally:
        cloud.stop()
        cloud.http.close()
