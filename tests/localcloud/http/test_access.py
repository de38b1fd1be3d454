"""The local cloud serves its owner and its VMs: no web page, and no other user of the machine."""

import base64
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2_grpc

from outlast.localcloud.http import peers
from tests.localcloud.local_cloud import PROJECT, FullCloud, LocalCloud, make_bucket
from tests.localcloud.strangers import NOBODY, as_nobody, exchange_as_nobody, needs_root

ROOT = Path(__file__).parents[3]
SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
VMS = f"/compute/v1/projects/{PROJECT}/zones/europe-west4-a/instances"
TOKEN = "ghp_REALTOKEN"
ENCODED = base64.b64encode(TOKEN.encode()).decode()


def port_of(cloud: LocalCloud) -> int:
    return int(cloud.url.rpartition(":")[2])


def raw(port: int, request: str) -> tuple[int, str]:
    """Status and text of the answer to these bytes; PORT in them is the port."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request.replace("PORT", str(port)).encode())
        while data := connection.recv(65536):
            answer += data
    return int(answer.split()[1]), answer.decode()


@pytest.fixture
def secret(cloud: LocalCloud) -> str:
    """The path of a secret's value."""
    cloud.call("POST", SECRETS, params={"secretId": "git"}, json={"replication": {"automatic": {}}})
    payload = {"payload": {"data": ENCODED}}
    assert cloud.call("POST", f"{SECRETS}/git:addVersion", json=payload).ok
    return f"{SECRETS}/git/versions/latest:access"


# A web page


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("Host: 127.0.0.1:PORT\r\n", 200),
        ("Host: localhost:PORT\r\n", 200),
        ("HOST: LocalHost:PORT\r\n", 200),
        ("Host: evil.example:PORT\r\n", 421),
        ("Host: evil.example\r\n", 421),
        ("Host: 127.0.0.1\r\n", 421),
        ("Host: 127.0.0.1:1\r\n", 421),
        ("Host: 127.0.0.1.evil.example:PORT\r\n", 421),
        ("Host: localhost.evil.example:PORT\r\n", 421),
        ("Host: evil.example@127.0.0.1:PORT\r\n", 421),
        ("Host: 127.0.0.1:PORT, evil.example\r\n", 421),
        ("Host: [::ffff:127.0.0.1]:PORT\r\n", 421),
        ("Host: 0.0.0.0:PORT\r\n", 421),
        ("Host: \r\n", 421),
        ("", 400),
        ("Host: 127.0.0.1:PORT\r\nHost: evil.example\r\n", 400),
        ("Host: evil.example\r\nX-Forwarded-Host: 127.0.0.1:PORT\r\n", 421),
    ],
)
@pytest.mark.parametrize("path", ["/_local/audit", f"/storage/v1/b?project={PROJECT}"])
def test_only_the_clouds_own_host_is_answered(
    cloud: LocalCloud, path: str, lines: str, status: int
) -> None:
    request = f"GET {path} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n"
    found, text = raw(port_of(cloud), request)
    assert found == status, text
    if status == 421:
        assert "must be 127.0.0.1:" in text and "buckets" not in text


@pytest.mark.parametrize(
    ("request_line", "lines"),
    [
        ("GET http://evil.example/_local/audit HTTP/1.1", "Host: 127.0.0.1:PORT\r\n"),
        ("GET http://127.0.0.1:PORT/_local/audit HTTP/1.1", "Host: 127.0.0.1:PORT\r\n"),
        ("OPTIONS * HTTP/1.1", "Host: 127.0.0.1:PORT\r\n"),
        ("CONNECT evil.example:80 HTTP/1.1", "Host: 127.0.0.1:PORT\r\n"),
        ("GET /_local/audit HTTP/1.0", ""),
    ],
)
def test_a_proxied_request_is_refused(cloud: LocalCloud, request_line: str, lines: str) -> None:
    found, text = raw(port_of(cloud), f"{request_line}\r\n{lines}Connection: close\r\n\r\n")
    assert found == 421, text


PAGE = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:PORT"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"},
    {"Origin": "http://evil.example", "Upgrade": "websocket", "Connection": "Upgrade"},
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("headers", PAGE, ids=lambda headers: "-".join(headers))
def test_a_browsers_request_is_refused(
    cloud: LocalCloud, secret: str, bucket: str, method: str, headers: dict[str, str]
) -> None:
    sent = {name: value.replace("PORT", str(port_of(cloud))) for name, value in headers.items()}
    for path in (secret, "/_local/reset", f"/storage/v1/b/{bucket}"):
        answer = cloud.call(method, path, headers=sent)
        assert answer.status_code == 403, (path, answer.text)
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert ENCODED not in answer.text
    assert cloud.call("GET", f"/storage/v1/b/{bucket}").ok


def test_an_address_that_a_person_typed_is_answered(cloud: LocalCloud) -> None:
    typed = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    assert cloud.call("GET", "/_local/vms", headers=typed).ok


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("text/plain", 415),
        ("Text/Plain;charset=UTF-8", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        (None, 415),
        ("", 415),
        ("application/json", 200),
        ("application/json; charset=UTF-8", 200),
    ],
)
def test_json_needs_a_content_type_that_a_web_page_cannot_send(
    cloud: LocalCloud, kind: str | None, status: int
) -> None:
    name = f"typed-{abs(hash(kind)) % 10**9}"
    body = json.dumps({"name": name, "location": "us-central1"})
    kinds = {} if kind is None else {"Content-Type": kind}
    answer = cloud.call("POST", f"/storage/v1/b?project={PROJECT}", data=body, headers=kinds)
    assert answer.status_code == status, answer.text
    assert cloud.call("GET", f"/storage/v1/b/{name}").ok is (status == 200)
    if status == 415:
        assert "must be application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_an_objects_bytes_have_any_type(cloud: LocalCloud, bucket: str, kind: str | None) -> None:
    kinds = {} if kind is None else {"Content-Type": kind}
    assert cloud.put(bucket, "typed", b"x", headers=kinds).ok
    assert cloud.object("GET", bucket, "typed", params={"alt": "media"}).content == b"x"


def test_a_header_does_not_identify_the_sender(cloud: LocalCloud) -> None:
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        assert cloud.call("GET", "/_local/vms", headers={name: "10.0.0.1"}).ok


# Another user


@needs_root
@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("lines", ["", "Authorization: Bearer local\r\n"])
@pytest.mark.parametrize(
    "line",
    [
        "GET SECRET",
        "GET /_local/audit",
        "POST /_local/stop",
        "POST /_local/reset",
        f"POST {VMS}",
        "OPTIONS /",
        "GET /nothing/known",
    ],
)
def test_another_user_is_refused(
    cloud: LocalCloud, secret: str, bucket: str, line: str, lines: str, host: str
) -> None:
    port = port_of(cloud)
    head = f"{line.replace('SECRET', secret)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}"
    answer = exchange_as_nobody(port, f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n", host)
    assert answer.startswith("HTTP/1.1 403"), answer
    assert f"the request is of user {NOBODY}" in answer and ENCODED not in answer
    assert cloud.call("GET", f"/storage/v1/b/{bucket}").ok


@needs_root
def test_another_user_cannot_use_a_vms_token(cloud: LocalCloud) -> None:
    head = f"GET /storage/v1/b?project={PROJECT} HTTP/1.1\r\nHost: 127.0.0.1:{port_of(cloud)}\r\n"
    token = "Authorization: Bearer vm-token-vm1:vm1@x.iam.gserviceaccount.com\r\n"
    answer = exchange_as_nobody(port_of(cloud), f"{head}{token}Connection: close\r\n\r\n")
    assert answer.startswith("HTTP/1.1 403"), answer


SILENT = """
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=80) as connection:
    connection.sendall(b"GET / HTTP/1.1\\r\\n")
    print(connection.recv(1))
"""


@needs_root
def test_another_user_cannot_hold_connections(cloud: LocalCloud) -> None:
    assert as_nobody(SILENT, port_of(cloud)) == "b''\n"


@pytest.fixture(params=["asked", "table"])
def lookup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to learn of a connection."""
    if request.param == "asked" and not peers._answers():
        pytest.skip("this kernel has no sock_diag")
    monkeypatch.setattr(peers, "_answers", lambda: request.param == "asked")


@pytest.mark.usefixtures("lookup")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_other_end_is_known_until_it_is_closed(family: socket.AddressFamily) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
        with socket.socket(family) as client:
            client.connect((host, server.getsockname()[1]))
            near, _ = server.accept()
            inode = os.fstat(client.fileno()).st_ino
            assert peers.far_end(near) == (inode, os.geteuid())
            client.shutdown(socket.SHUT_WR)
            assert peers.far_end(near) == (inode, os.geteuid())
        near.recv(1)
        assert peers.far_end(near) is None  # the kernel still has it, as root's
        near.close()


@pytest.mark.usefixtures("lookup")
def test_a_reused_port_does_not_identify_the_earlier_sender() -> None:
    """A client that sends, resets and leaves its port to the owner must not pass for the owner."""
    linger_zero = struct.pack("ii", 1, 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        address = first.getsockname()
        first.sendall(b"request")
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
        first.close()
        with socket.socket() as second:
            second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            second.bind(address)
            second.connect(server.getsockname())
            near_first, far_first = server.accept()
            near_second, far_second = server.accept()
            assert far_first == far_second == address
            assert near_first.recv(100) == b"request"  # the kernel still hands it over
            assert peers.far_end(near_first) is None
            inode = os.fstat(second.fileno()).st_ino
            assert peers.far_end(near_second) == (inode, os.geteuid())
            near_first.close()
            near_second.close()


# The engine's provider


@pytest.fixture(scope="module")
def provider_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    state = tmp_path_factory.mktemp("with-provider") / "state"
    serve = ("-m", "outlast.localcloud", "serve", "--state", str(state), "--no-guests")
    with closing(Ended(LocalCloud(state, *serve))) as ended:
        yield json.loads((ended.cloud.state / "endpoint.json").read_text())["provider_port"]


class Ended:
    """Ends a cloud and its client on `close`."""

    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud = cloud

    def close(self) -> None:
        self.cloud.stop()
        self.cloud.http.close()


CALLS = """
with grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}") as channel:
    stub = provider_pb2_grpc.ResourceProviderStub(channel)
    for call, request in (
        (stub.GetPluginInfo, empty_pb2.Empty()),
        (stub.Create, provider_pb2.CreateRequest(urn="urn:pulumi:a::b::c::d")),
        (stub.Cancel, empty_pb2.Empty()),
    ):
        try:
            call(request, timeout=60)
            print("answered")
        except grpc.RpcError as error:
            print(error.code().name, error.details())
    try:
        list(stub.List(provider_pb2.ListRequest(), timeout=60))
    except grpc.RpcError as error:
        print(error.code().name, error.details())
"""
GRPC = """
import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc
"""


@needs_root
def test_another_user_cannot_call_the_provider(provider_port: int) -> None:
    lines = as_nobody(CALLS, provider_port, imports=GRPC).splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith("PERMISSION_DENIED") and f"the call is of user {NOBODY}" in line


def test_the_owners_engine_calls_the_provider(provider_port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{provider_port}") as channel:
        stub = provider_pb2_grpc.ResourceProviderStub(channel)
        assert stub.GetPluginInfo(empty_pb2.Empty(), timeout=60).version


# VMs


def boot(cloud: FullCloud, script: str, name: str = "vm1") -> None:
    body = {
        "name": name,
        "machineType": "zones/europe-west4-a/machineTypes/e2-small",
        "disks": [
            {
                "boot": True,
                "initializeParams": {
                    "sourceImage": f"projects/{PROJECT}/global/images/family/outlast"
                },
            }
        ],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "metadata": {"items": [{"key": "startup-script", "value": f"#!/bin/bash\n{script}"}]},
    }
    cloud.ok("POST", VMS, body)


def serial(cloud: FullCloud, name: str = "vm1") -> str:
    found = cloud.call("GET", f"{VMS}/{name}/serialPort")
    return found.json()["contents"] if found.ok else ""


@pytest.mark.rehearsal
def test_only_a_vm_is_answered_by_its_metadata_server(full_cloud: FullCloud) -> None:
    boot(
        full_cloud,
        """
ask() { curl -s -o /dev/null -w "$1 %{http_code}\\n" -H 'Metadata-Flavor: Google' "${@:2}" \
  "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/id"; }
ask own
ask name -H 'Host: metadata.google.internal'
ask page -H 'Origin: http://evil.example'
ask rebound -H 'Host: evil.example'
ask cross -H 'Sec-Fetch-Site: cross-site'
umask
mkdir kept && stat -c 'mode %a' kept
echo "probes done at $GCE_METADATA_HOST"
sleep 600
""",
    )
    text = ""
    for _ in range(600):
        if "probes done at" in (text := serial(full_cloud)):
            break
        subprocess.run(["sleep", "0.1"], check=True)
    lines = text.splitlines()
    assert {"own 200", "name 200", "page 403", "rebound 421", "cross 403"} <= set(lines), text
    assert {"0022", "mode 755"} <= set(lines), text  # a machine's own, under any user of the cloud
    port = int(text.partition("probes done at ")[2].split()[0].rpartition(":")[2])
    head = (
        "GET /computeMetadata/v1/instance/id HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{port}\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n"
    )
    for host in ("127.0.0.1", "::ffff:127.0.0.1"):  # the owner's processes are no VM's either
        with socket.create_connection((host, port), timeout=60) as connection:
            connection.sendall(head.encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 403")
        if os.geteuid() == 0:
            assert " 403 " in exchange_as_nobody(port, head, host)


# The state folder


def open_to_others(folder: Path) -> list[Path]:
    """What below a folder other users may read, write or enter, were they let into it."""
    return [
        path
        for path in folder.rglob("*")
        if not path.is_symlink() and stat.S_IMODE(path.lstat().st_mode) & 0o077
    ]


def keep_secrets(cloud: LocalCloud) -> None:
    automatic = {"replication": {"automatic": {}}}
    assert cloud.call("POST", SECRETS, params={"secretId": "git"}, json=automatic).ok
    payload = {"payload": {"data": ENCODED}}
    assert cloud.call("POST", f"{SECRETS}/git:addVersion", json=payload).ok
    bucket = make_bucket(cloud)
    assert cloud.put(bucket, "a", TOKEN.encode()).ok


def test_only_the_owner_can_read_the_clouds_state(own_cloud: LocalCloud) -> None:
    keep_secrets(own_cloud)
    assert stat.S_IMODE(own_cloud.state.stat().st_mode) == 0o700
    kept = [path for path in own_cloud.state.rglob("*") if path.is_file()]
    assert any(ENCODED.encode() in path.read_bytes() for path in kept)
    assert open_to_others(own_cloud.state) == []


@needs_root
def test_another_user_reads_nothing_of_the_state(own_cloud: LocalCloud) -> None:
    keep_secrets(own_cloud)
    own_cloud.state.parent.chmod(0o755)
    walk = "print([n for _, d, f in os.walk(sys.argv[1]) for n in d + f])"
    assert as_nobody(walk, own_cloud.state) == "[]\n"


def serve(state: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outlast.localcloud", "serve", "--no-provider", *flags]
    return subprocess.run(
        [*command, "--state", str(state)], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


def test_a_folder_readable_by_others_is_closed_to_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    Ended(LocalCloud(state)).close()
    state.chmod(0o755)
    capfd.readouterr()
    Ended(LocalCloud(state)).close()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert f"{state}: was open to other users (mode 0755); it is 0700 now" in capfd.readouterr().err


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_writable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    Ended(LocalCloud(state)).close()
    state.chmod(mode)
    done = serve(state)
    assert done.returncode == 64 and "Traceback" not in done.stderr
    assert f"--state {state}: other users may write into it (mode 0{mode:o})" in done.stderr


def test_a_link_is_refused_and_its_target_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "home"
    kept.mkdir()
    state = tmp_path / "state"
    state.symlink_to(kept)
    done = serve(state)
    assert done.returncode == 64 and f"--state {state}: is a link" in done.stderr
    assert list(kept.iterdir()) == []


@needs_root
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    done = serve(state)
    assert done.returncode == 64
    assert f"--state {state}: belongs to user {NOBODY}, not to you" in done.stderr
    assert list(state.iterdir()) == []


# Clients of the owner's


def test_a_client_with_its_own_session_is_answered(cloud: LocalCloud) -> None:
    answers: list[Any] = [requests.get(f"{cloud.url}/_local/vms", timeout=60) for _ in range(20)]
    port = port_of(cloud)
    answers.append(requests.get(f"http://localhost:{port}/_local/vms", timeout=60))
    assert {answer.status_code for answer in answers} == {200}
