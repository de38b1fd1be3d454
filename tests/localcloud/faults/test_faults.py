"""Fault rules, as clients see them."""

import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.localcloud.local_cloud import LocalCloud

KIB = 1024


def exists(cloud: LocalCloud, bucket: str, name: str) -> bool:
    return cloud.object("GET", bucket, name).status_code == 200


def test_status_before_has_no_effect(cloud: LocalCloud, bucket: str) -> None:
    cloud.add_fault("before", {"status": 503, "retry_after_sec": 2}, object="^a$")
    answer = cloud.put(bucket, "a", b"z" * 300 * KIB)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error"]["errors"][0]["reason"] == "backendError"
    assert not exists(cloud, bucket, "a")
    assert cloud.put(bucket, "a").status_code == 200


@pytest.mark.parametrize("do", [{"status": 503}, {"reset": True}, {"drop_answer": True}])
def test_answer_lost_after_the_effect(cloud: LocalCloud, bucket: str, do: dict[str, Any]) -> None:
    cloud.add_fault("after", do, object="^a$", method="POST")
    if "status" in do:
        assert cloud.put(bucket, "a").status_code == 503
    else:
        with pytest.raises(requests.ConnectionError):
            cloud.put(bucket, "a")
    assert exists(cloud, bucket, "a")


def test_reset_in_mid_upload_leaves_no_object(cloud: LocalCloud, bucket: str) -> None:
    cloud.add_fault("mid-body", {"reset": True}, object="^a$")
    with pytest.raises(requests.ConnectionError):
        cloud.put(bucket, "a", b"z" * 900 * KIB)
    assert not exists(cloud, bucket, "a")
    assert not list((cloud.state / "storage/uploads").glob("direct-*"))


def test_a_small_upload_also_has_a_middle(cloud: LocalCloud, bucket: str) -> None:
    cloud.add_fault("mid-body", {"status": 500}, object="^a$")
    assert cloud.put(bucket, "a", b"tiny").status_code == 500
    assert not exists(cloud, bucket, "a")
    cloud.add_fault("mid-body", {"delay_sec": 0.2}, object="^b$")
    started = time.monotonic()
    assert cloud.put(bucket, "b", b"tiny").status_code == 200
    assert time.monotonic() - started >= 0.2
    answer = cloud.object("GET", bucket, "b", params={"alt": "media"})
    assert answer.content == b"tiny"


def test_reset_in_mid_download(cloud: LocalCloud, bucket: str) -> None:
    cloud.put(bucket, "a", b"z" * 600 * KIB)
    cloud.add_fault("mid-body", {"reset": True}, object="^a$", method="GET")
    with pytest.raises(requests.RequestException):
        cloud.object("GET", bucket, "a", params={"alt": "media"})
    assert len(cloud.object("GET", bucket, "a", params={"alt": "media"}).content) == 600 * KIB


def test_download_continues_after_a_delay(cloud: LocalCloud, bucket: str) -> None:
    data = bytes(range(256)) * KIB * 2
    cloud.put(bucket, "a", data)
    cloud.add_fault("mid-body", {"delay_sec": 0.1}, object="^a$", method="GET")
    assert cloud.object("GET", bucket, "a", params={"alt": "media"}).content == data


def test_bodies_move_slowly(cloud: LocalCloud, bucket: str) -> None:
    data = b"z" * 100 * KIB
    cloud.add_fault("before", {"bytes_per_sec": 200 * KIB}, object="^a$", count=2)
    for send in (
        lambda: cloud.put(bucket, "a", data),
        lambda: cloud.object("GET", bucket, "a", params={"alt": "media"}),
    ):
        started = time.monotonic()
        assert send().status_code == 200
        assert time.monotonic() - started >= 0.5
    assert cloud.object("GET", bucket, "a", params={"alt": "media"}).content == data


def test_stall_ends_with_the_client(cloud: LocalCloud, bucket: str) -> None:
    rule = cloud.add_fault("before", {"stall": True}, object="^a$")

    def stall() -> dict[str, Any]:
        shown = {r["id"]: r for r in cloud.call("GET", "/_local/faults").json()}
        return shown[rule]["stalls"][0]

    with pytest.raises(requests.Timeout):
        requests.get(f"{cloud.url}/storage/v1/b/{bucket}/o/a", timeout=0.3)
    until = time.monotonic() + 10
    while stall()["waited_sec"] is None:
        assert time.monotonic() < until, "the client's end was not seen"
    assert stall() | {"waited_sec": 0} == {"target": "a", "waited_sec": 0, "again": False}
    assert stall()["waited_sec"] >= 0.3
    assert cloud.object("GET", bucket, "b").status_code == 404
    assert not stall()["again"]
    assert cloud.object("GET", bucket, "a").status_code == 404
    assert stall()["again"]


def test_nth_and_count(cloud: LocalCloud, bucket: str) -> None:
    rule = cloud.add_fault("before", {"status": 500}, path=f"/b/{bucket}/o/", nth=2, count=2)
    codes = [cloud.object("GET", bucket, "a").status_code for _ in range(4)]
    assert codes == [404, 500, 500, 404]
    shown = {r["id"]: r for r in cloud.call("GET", "/_local/faults").json()}
    assert (shown[rule]["seen"], shown[rule]["fired"]) == (4, 2)
    assert cloud.call("DELETE", f"/_local/faults/{rule}").status_code == 200
    assert cloud.call("DELETE", f"/_local/faults/{rule}").status_code == 404


def test_object_of_every_kind_of_upload(cloud: LocalCloud, bucket: str) -> None:
    cloud.add_fault("before", {"status": 500}, path=rf"/b/{bucket}/o/d/HEAD$", count=0)
    path = f"/upload/storage/v1/b/{bucket}/o"
    assert cloud.put(bucket, "d/HEAD").status_code == 500
    metadata = {"name": "d/HEAD"}
    resumable = cloud.call("POST", path, params={"uploadType": "resumable"}, json=metadata)
    assert resumable.status_code == 500
    body = (
        b'--x\r\nContent-Type: application/json\r\n\r\n{"name": "d/%s"}\r\n--x\r\n\r\ndata\r\n--x--'
    )
    for name, status in ((b"HEAD", 500), (b"TAIL", 200)):
        answer = cloud.call(
            "POST",
            path,
            params={"uploadType": "multipart"},
            data=body % name,
            headers={"Content-Type": "multipart/related; boundary=x"},
        )
        assert answer.status_code == status
    assert exists(cloud, bucket, "d/TAIL")


def test_chunks_of_a_resumable_upload(cloud: LocalCloud, bucket: str) -> None:
    """A connection cut in the second chunk: the client asks, and resumes from what arrived."""
    data = b"z" * 1024 * KIB
    path = f"/upload/storage/v1/b/{bucket}/o"
    opened = cloud.call("POST", path, params={"uploadType": "resumable", "name": "big"})
    url = opened.headers["location"]
    cloud.add_fault("mid-body", {"reset": True}, method="PUT", object="^big$")
    with pytest.raises(requests.ConnectionError):
        headers = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
        cloud.http.put(url, data=data, headers=headers, timeout=60)
    asked = cloud.http.put(url, headers={"Content-Range": f"bytes */{len(data)}"}, timeout=60)
    assert asked.status_code == 308
    received = int(asked.headers["range"].rpartition("-")[2]) + 1
    assert received == 512 * KIB
    headers = {"Content-Range": f"bytes {received}-{len(data) - 1}/{len(data)}"}
    sent = cloud.http.put(url, data=data[received:], headers=headers, timeout=60)
    assert sent.status_code == 200
    assert cloud.object("GET", bucket, "big", params={"alt": "media"}).content == data


def test_vm_actions_and_sender(cloud: LocalCloud, bucket: str) -> None:
    before = len(cloud.events("machine"))
    rule = cloud.add_fault(
        "before", {"kill_vm": True, "freeze_vm": "vm-9"}, vm="vm-7", object="^a$"
    )
    cloud.object("GET", bucket, "a", vm=("vm-8", "x@y"))
    cloud.object("GET", bucket, "a", vm=("vm-7", "x@y"))
    did = [(event["verb"], event["vm"]) for event in cloud.events("machine")[before:]]
    assert did == [("kill", "vm-7"), ("freeze", "vm-9")]
    event = cloud.events("fault")[-1]
    assert (event["id"], event["vm"], event["object"]) == (rule, "vm-7", "a")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"do": {"status": 500}, "wehn": "after"}, "wehn"),
        ({"do": {}}, "action"),
        ({"do": {"explode": True}}, "explode"),
        ({"do": {"status": 500}, "when": "never"}, "never"),
        ({"do": {"drop_answer": True}, "when": "before"}, "after"),
        ({"do": {"status": 500}, "match": {"path": "("}}, "match.path '(': must be a regular"),
        ({"do": {"status": 200}}, "do.status 200: must be greater than or equal to 400"),
        ({"do": {"status": "500"}}, "do.status '500': must be a whole number"),
        ({"do": {"bytes_per_sec": 9}, "when": "after"}, "must be 'before' for bytes_per_sec"),
        ({"do": {"delay_sec": -1}}, "do.delay_sec -1: must be greater than or equal to 0"),
        ({"do": {"reset": True}, "match": {"nth": 0}}, "match.nth 0: must be"),
        ({"do": {"reset": True}, "match": {"count": True}}, "match.count True: must be"),
    ],
)
def test_bad_rule(cloud: LocalCloud, rule: dict[str, Any], says: str) -> None:
    answer = cloud.call("POST", "/_local/faults", json=rule)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_reset_is_a_reset_on_the_wire(cloud: LocalCloud, bucket: str) -> None:
    cloud.add_fault("before", {"reset": True}, object="^a$")
    address = urlsplit(cloud.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        request = f"GET /storage/v1/b/{bucket}/o/a HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
        connection.sendall(request.encode())
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_requests_are_counted_by_path_and_object_while_that_is_wanted(
    cloud: LocalCloud, bucket: str
) -> None:
    cloud.put(bucket, "before")
    assert cloud.call("GET", "/_local/requests").json() == []
    cloud.call("PUT", "/_local/requests")
    cloud.put(bucket, "a/b")
    for _ in range(2):
        cloud.object("GET", bucket, "a/b")
    objects = f"/storage/v1/b/{bucket}/o"
    cloud.call("GET", objects, params={"prefix": "a/"})
    found = cloud.call("GET", "/_local/requests").json()
    assert [(one["method"], one["path"], one["object"], one["count"]) for one in found] == [
        ("POST", f"/upload{objects}", "a/b", 1),
        ("GET", f"{objects}/a/b", "a/b", 2),
        ("GET", objects, None, 1),
    ]
    assert {one["vm"] for one in found} == {None}
    cloud.call("PUT", "/_local/requests")
    assert cloud.call("GET", "/_local/requests").json() == []
    cloud.call("DELETE", "/_local/requests")
    cloud.object("GET", bucket, "a/b")
    assert cloud.call("GET", "/_local/requests").json() == []
