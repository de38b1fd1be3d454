import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from outlast.localcloud.vm.metadata import (
    Server,
    Tree,
    Trouble,
    vm_values,
)

FLAVOR = {"Metadata-Flavor": "Google"}
EMAIL = "trainer@outlast-rehearsal.iam.gserviceaccount.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@pytest.fixture
def server() -> Iterator[Server]:
    values = vm_values(
        project="outlast-rehearsal",
        project_number="123456",
        instance_id="1795827353630395",
        name="digits-x1y2",
        zone="europe-west4-a",
        properties={
            "machineType": "e2-standard-2",
            "scheduling": {"provisioningModel": "SPOT", "automaticRestart": False},
            "serviceAccounts": [{"email": EMAIL, "scopes": [SCOPE]}],
            "tags": {"items": ["a", "b"]},
        },
        service_account=EMAIL,
        image="projects/debian-cloud/global/images/debian-13-trixie-v20260921",
    )
    attributes = {"outlast-run": "0123456789", "outlast-arg-max-steps": "7"}
    values |= {f"instance/attributes/{key}": value for key, value in attributes.items()}
    server = Server(Tree(values), lambda: "vm-token-secret")
    yield server
    server.close()


def get(server: Server, path: str, **params: str) -> requests.Response:
    with requests.Session() as http:
        http.trust_env = False
        return http.get(
            f"http://{server.host}/computeMetadata/v1/{path}",
            params=params,
            headers=FLAVOR,
            timeout=60,
        )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("project/project-id", "outlast-rehearsal"),
        ("project/numeric-project-id", "123456"),
        ("instance/id", "1795827353630395"),
        ("instance/name", "digits-x1y2"),
        ("instance/hostname", "digits-x1y2.europe-west4-a.c.outlast-rehearsal.internal"),
        ("instance/zone", "projects/123456/zones/europe-west4-a"),
        ("instance/machine-type", "projects/123456/machineTypes/e2-standard-2"),
        ("instance/preempted", "FALSE"),
        ("instance/maintenance-event", "NONE"),
        ("instance/attributes/outlast-run", "0123456789"),
        ("instance/service-accounts/default/email", EMAIL),
        (f"instance/service-accounts/{EMAIL}/email", EMAIL),
        ("instance/service-accounts/default/scopes", SCOPE + "\n"),
        ("instance/scheduling/preemptible", "TRUE"),
        ("instance/scheduling/automatic-restart", "FALSE"),
        ("instance/scheduling/on-host-maintenance", "TERMINATE"),
        ("instance/tags", "a\nb\n"),
        ("instance/service-accounts/", f"default/\n{EMAIL}/\n"),
        ("instance/attributes/", "outlast-arg-max-steps\noutlast-run\n"),
        ("universe/universe-domain", "googleapis.com"),
    ],
)
def test_values(server: Server, path: str, value: str) -> None:
    answer = get(server, path)
    assert (answer.status_code, answer.text) == (200, value)
    assert answer.headers["Metadata-Flavor"] == "Google"
    assert answer.headers["ETag"]


def test_recursive_json_renames_the_servers_names_and_keeps_the_users(server: Server) -> None:
    document = get(server, "", recursive="true").json()
    assert document["project"]["numericProjectId"] == 123456
    instance = document["instance"]
    assert instance["id"] == 1795827353630395
    assert instance["machineType"].endswith("e2-standard-2")
    assert instance["attributes"] == {"outlast-run": "0123456789", "outlast-arg-max-steps": "7"}
    assert instance["serviceAccounts"]["default"]["scopes"] == [SCOPE]
    assert instance["networkInterfaces"][0]["mtu"] == 1460
    assert "secret" not in str(document)


def test_a_folder_of_attributes_exists_without_any(server: Server) -> None:
    """google_metadata_script_runner 20211116 of Debian asks for a project's folder when the machine
    stops, and repeats that until the answer is JSON."""
    params = {"recursive": "true", "alt": "json", "timeout_sec": "10", "last_etag": "NONE"}
    assert get(server, "project/attributes/", **params).json() == {}
    assert get(server, "project/", **params).json()["attributes"] == {}
    assert get(server, "", **params).json()["project"]["attributes"] == {}
    assert get(server, "project/attributes/").text == ""
    assert get(server, "project/").text == "attributes/\nnumeric-project-id\nproject-id\n"
    server.tree.replace("instance/attributes/", {})
    assert get(server, "instance/attributes/", **params).json() == {}
    assert get(server, "instance/attributes/absent/", **params).status_code == 404


def test_folder_without_its_slash_redirects(server: Server) -> None:
    assert get(server, "instance/attributes").text == "outlast-arg-max-steps\noutlast-run\n"


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({}, "instance/id", 403),
        ({**FLAVOR, "X-Forwarded-For": "1.2.3.4"}, "instance/id", 403),
        (FLAVOR, "instance/attributes/absent", 404),
        (FLAVOR, "instance/service-accounts/nobody/token", 404),
    ],
)
def test_refusals(server: Server, headers: dict[str, str], path: str, status: int) -> None:
    url = f"http://{server.host}/computeMetadata/v1/{path}"
    assert requests.get(url, headers=headers, timeout=60).status_code == status


def test_the_root_is_read_as_debians_guest_agent_asks_for_it(server: Server) -> None:
    """google-guest-agent 20211116 of Debian sends `v1//`, which the real server takes."""
    answer = get(server, "/", recursive="true", alt="json", last_etag="NONE")
    assert answer.status_code == 200 and answer.headers["ETag"]
    assert answer.json()["instance"]["attributes"]["outlast-run"] == "0123456789"
    assert answer.json()["project"]["projectId"] == "outlast-rehearsal"


def test_waiting_reader_is_woken_by_the_change(server: Server) -> None:
    answers: list[requests.Response] = []
    reader = threading.Thread(
        target=lambda: answers.append(get(server, "instance/preempted", wait_for_change="true"))
    )
    reader.start()
    deadline = time.monotonic() + 10
    while threading.active_count() < 3 and time.monotonic() < deadline:
        time.sleep(0.005)  # until the server has a thread for the reader
    time.sleep(0.05)
    assert not answers
    server.tree.set("instance/preempted", "TRUE")
    reader.join(60)
    assert answers[0].text == "TRUE"


def test_reader_with_an_old_etag_is_answered_at_once(server: Server) -> None:
    old = get(server, "instance/preempted").headers["ETag"]
    server.tree.set("instance/preempted", "TRUE")
    answer = get(server, "instance/preempted", wait_for_change="true", last_etag=old)
    assert answer.text == "TRUE"
    assert get(server, "instance/id", wait_for_change="true", last_etag="0").status_code == 200


def test_wait_ends_with_its_time_and_the_same_value(server: Server) -> None:
    etag = get(server, "instance/preempted").headers["ETag"]
    answer = get(
        server, "instance/preempted", wait_for_change="true", last_etag=etag, timeout_sec="0.1"
    )
    assert (answer.status_code, answer.text, answer.headers["ETag"]) == (200, "FALSE", etag)


def test_wait_for_a_folder(server: Server) -> None:
    params = {"recursive": "true", "alt": "json"}
    etag = get(server, "instance/attributes/", **params).headers["ETag"]
    timer = threading.Timer(
        0.1, lambda: server.tree.replace("instance/attributes/", {"outlast-run": "new"})
    )
    timer.start()
    answer = get(server, "instance/attributes/", wait_for_change="true", last_etag=etag, **params)
    timer.join()
    assert answer.json() == {"outlast-run": "new"}


def test_closing_answers_waiting_readers() -> None:
    server = Server(Tree({"instance/preempted": "FALSE"}), lambda: "t")
    statuses: list[int] = []
    etag = get(server, "instance/preempted").headers["ETag"]
    reader = threading.Thread(
        target=lambda: statuses.append(
            get(server, "instance/preempted", wait_for_change="true", last_etag=etag).status_code
        )
    )
    reader.start()
    time.sleep(0.1)
    server.close()
    reader.join(60)
    assert statuses == [503]


def test_guest_attributes_are_written_where_enabled(server: Server) -> None:
    url = f"http://{server.host}/computeMetadata/v1/instance/guest-attributes/outlast/state"
    assert requests.put(url, data="baked", headers=FLAVOR, timeout=60).status_code == 403
    server.tree.set("instance/attributes/enable-guest-attributes", "TRUE")
    assert requests.put(url, data="baked", headers=FLAVOR, timeout=60).status_code == 200
    assert get(server, "instance/guest-attributes/outlast/state").text == "baked"
    assert server.tree.items("instance/guest-attributes/") == {"outlast/state": "baked"}
    assert requests.delete(url, headers=FLAVOR, timeout=60).status_code == 200
    assert get(server, "instance/guest-attributes/outlast/state").status_code == 404


def test_googles_own_client_finds_and_gets_its_credentials(server: Server, tmp_path: Path) -> None:
    program = (
        "import google.auth, google.auth.transport.requests as transport\n"
        "credentials, project = google.auth.default()\n"
        "credentials.refresh(transport.Request())\n"
        "print(project, credentials.token, credentials.service_account_email)\n"
    )
    environment = {
        "HOME": str(tmp_path),
        "GCE_METADATA_HOST": server.host,
        "GCE_METADATA_IP": server.host,
    }
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.stdout == f"outlast-rehearsal vm-token-secret {EMAIL}\n", said.stderr


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"PUT /computeMetadata/v1/instance/id HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"PUT /computeMetadata/v1/instance/id HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT /computeMetadata/v1/x HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx", 400),
        (b"PUT /computeMetadata/v1/x HTTP/1.1\r\nContent-Length: 100\r\n\r\nx", 400),
        (b"\x16\x03\x01\0\0\0\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
    ],
    ids=["length", "negative", "huge", "cut", "tls", "target", "header"],
)
def test_garbage_is_answered_and_the_server_keeps_running(
    server: Server, sent: bytes, status: int
) -> None:
    address, _, port = server.host.partition(":")
    answer = b""
    with socket.create_connection((address, int(port)), timeout=60) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
        with suppress(OSError):  # it has hung up already
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := connection.recv(65536):
                answer += data
    # One that is over the limits is not read to its end: the sender may see a reset instead.
    assert str(status).encode() in answer or (status > 400 and not answer)
    assert get(server, "instance/preempted").text == "FALSE"


def test_faults_precede_the_answers() -> None:
    server = Server(Tree({"instance/id": 7}), lambda: "", trouble=Trouble(0.5, 503, 2))
    try:
        answers: list[int] = []
        while answers[-1:] != [200]:
            try:
                answers.append(get(server, "instance/id").status_code)
            except requests.ConnectionError:
                answers.append(0)
        late = answers.count(0)
        assert late, "at first connections are dropped"
        assert answers[late:] == [503, 503, 200]
    finally:
        server.close()
