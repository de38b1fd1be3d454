"""The storage API, by plain HTTP and by the client library that production uses."""

import base64
import contextlib
import hashlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from hypothesis import HealthCheck, given, settings, strategies

from outlast.localcloud.http.discovery import check_answer
from outlast.localcloud.storage.journal import Journal
from tests.localcloud.local_cloud import PROJECT, LocalCloud, make_bucket

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def client(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Client]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    client = storage.Client(project=PROJECT, credentials=AnonymousCredentials())
    client._http.trust_env = False
    yield client
    client._http.close()
    client.close()


def reason(answer: requests.Response) -> str:
    return answer.json()["error"]["errors"][0]["reason"]


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def seed(cloud: LocalCloud, bucket: str, *names: str) -> None:
    for name in names:
        assert cloud.put(bucket, name).status_code == 200


# Preconditions


def test_stale_write_is_refused(cloud: LocalCloud, bucket: str) -> None:
    first = cloud.put(bucket, "HEAD", b"one").json()
    time.sleep(1.01)  # the name takes one write a second
    second = cloud.put(
        bucket, "HEAD", b"two", params={"ifGenerationMatch": first["generation"]}
    ).json()
    stale = cloud.put(bucket, "HEAD", b"bad", params={"ifGenerationMatch": first["generation"]})
    assert (stale.status_code, reason(stale)) == (412, "conditionNotMet")
    assert cloud.object("GET", bucket, "HEAD", params={"alt": "media"}).content == b"two"
    assert int(second["generation"]) > int(first["generation"])


def test_one_of_many_creators_wins(cloud: LocalCloud, bucket: str) -> None:
    def create(number: int) -> int:
        return requests.post(
            f"{cloud.url}/upload/storage/v1/b/{bucket}/o",
            params={"uploadType": "media", "name": "HEAD", "ifGenerationMatch": "0"},
            data=str(number),
            timeout=60,
        ).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(create, range(16)))
    assert sorted(codes) == [200] + [412] * 15


@pytest.mark.parametrize(
    ("method", "params", "status"),
    [
        ("GET", {"ifGenerationMatch": "1"}, 412),
        ("GET", {"ifGenerationNotMatch": "LIVE"}, 304),
        ("GET", {"ifGenerationNotMatch": "1"}, 200),
        ("GET", {"ifMetagenerationMatch": "2"}, 412),
        ("GET", {"ifGenerationMatch": "often"}, 400),
        ("GET", {"generation": "1"}, 404),
        ("DELETE", {"ifGenerationMatch": "1"}, 412),
        ("DELETE", {"ifGenerationNotMatch": "LIVE"}, 412),
        ("DELETE", {"ifGenerationMatch": "LIVE"}, 204),
    ],
)
def test_preconditions(
    cloud: LocalCloud, bucket: str, method: str, params: dict[str, str], status: int
) -> None:
    live = cloud.put(bucket, "a/b").json()["generation"]
    params = {key: live if value == "LIVE" else value for key, value in params.items()}
    assert cloud.object(method, bucket, "a/b", params=params).status_code == status


def test_second_write_in_a_second_is_refused(cloud: LocalCloud, bucket: str) -> None:
    assert cloud.put(bucket, "heartbeat").status_code == 200
    soon = cloud.put(bucket, "heartbeat")
    assert (soon.status_code, reason(soon)) == (429, "rateLimitExceeded")
    time.sleep(1.01)
    assert cloud.put(bucket, "heartbeat").status_code == 200


# Uploads


def multipart(metadata: dict[str, Any], data: bytes) -> dict[str, Any]:
    boundary = "=====frontier=="
    head = f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{json.dumps(metadata)}\r\n"
    part = f"--{boundary}\r\nContent-Type: text/plain\r\n\r\n"
    body = head.encode() + part.encode() + data + f"\r\n--{boundary}--".encode()
    kind = f'multipart/related; boundary="{boundary}"'
    return {"data": body, "headers": {"Content-Type": kind}, "params": {"uploadType": "multipart"}}


@pytest.mark.parametrize("data", [b"", b"hello", b"\r\n--=====frontier\r\n" * 9, b"z" * 3 * MIB])
def test_multipart_keeps_every_byte(cloud: LocalCloud, bucket: str, data: bytes) -> None:
    path = f"/upload/storage/v1/b/{bucket}/o"
    metadata = {"name": "d/e f", "metadata": {"by": "test"}, "crc32c": crc32c(data)}
    kept = cloud.call("POST", path, **multipart(metadata, data)).json()
    assert kept["md5Hash"] == md5(data)
    assert kept["size"] == str(len(data))
    assert kept["contentType"] == "text/plain"
    assert kept["metadata"] == {"by": "test"}
    answer = cloud.http.get(kept["mediaLink"], timeout=60)
    assert answer.content == data
    assert answer.headers["x-goog-generation"] == kept["generation"]
    assert answer.headers["x-goog-hash"] == f"crc32c={crc32c(data)},md5={md5(data)}"
    assert answer.headers["date"].endswith("GMT")


@pytest.mark.parametrize("metadata", [{"crc32c": "AAAAAA=="}, {"md5Hash": md5(b"other")}])
def test_damaged_upload_is_refused(
    cloud: LocalCloud, bucket: str, metadata: dict[str, str]
) -> None:
    path = f"/upload/storage/v1/b/{bucket}/o"
    answer = cloud.call("POST", path, **multipart({"name": "d", **metadata}, b"data"))
    assert (answer.status_code, reason(answer)) == (400, "invalid")
    header = cloud.put(bucket, "d", b"data", headers={"x-goog-hash": "crc32c=AAAAAA=="})
    assert header.status_code == 400
    assert cloud.object("GET", bucket, "d").status_code == 404


def test_cut_multipart_leaves_nothing(cloud: LocalCloud, bucket: str) -> None:
    path = f"/upload/storage/v1/b/{bucket}/o"
    request = multipart({"name": "d"}, b"data" * 100)
    answer = cloud.call("POST", path, **{**request, "data": request["data"][:-40]})
    assert answer.status_code == 400
    assert cloud.object("GET", bucket, "d").status_code == 404
    assert not list((cloud.state / "storage/uploads").glob("direct-*"))


@pytest.mark.parametrize("body", [{"name": "d", "colour": "red"}, {"name": "d", "metadata": 3}])
def test_unknown_field_is_refused(cloud: LocalCloud, bucket: str, body: dict[str, Any]) -> None:
    answer = cloud.call("POST", f"/upload/storage/v1/b/{bucket}/o", **multipart(body, b"data"))
    assert answer.status_code == 400


def open_session(cloud: LocalCloud, bucket: str, name: str, **params: str) -> str:
    path = f"/upload/storage/v1/b/{bucket}/o"
    answer = cloud.call("POST", path, params={"uploadType": "resumable", "name": name, **params})
    assert answer.status_code == 200, answer.text
    return answer.headers["location"]


def send(cloud: LocalCloud, url: str, content_range: str, data: bytes = b"") -> requests.Response:
    return cloud.http.put(url, data=data, headers={"Content-Range": content_range}, timeout=60)


def test_a_resumable_upload_continues_where_it_stopped(cloud: LocalCloud, bucket: str) -> None:
    data = bytes(range(256)) * 2 * KIB + b"tail"
    url = open_session(cloud, bucket, "big")
    half = 256 * KIB
    assert send(cloud, url, f"bytes */{len(data)}").headers.get("range") is None
    first = send(cloud, url, f"bytes 0-{half - 1}/{len(data)}", data[:half])
    assert (first.status_code, first.headers["range"]) == (308, f"bytes=0-{half - 1}")
    assert send(cloud, url, "bytes */*").headers["range"] == f"bytes=0-{half - 1}"
    gap = send(cloud, url, f"bytes {half + 5}-{len(data) - 1}/{len(data)}", data[half + 5 :])
    assert gap.status_code == 400
    assert cloud.object("GET", bucket, "big").status_code == 404
    last = send(cloud, url, f"bytes {half}-{len(data) - 1}/{len(data)}", data[half:])
    assert (last.status_code, last.json()["crc32c"]) == (200, crc32c(data))
    again = send(cloud, url, f"bytes */{len(data)}")  # the answer was lost
    assert again.json()["generation"] == last.json()["generation"]


def test_a_resumable_precondition_is_checked_at_the_end(cloud: LocalCloud, bucket: str) -> None:
    url = open_session(cloud, bucket, "HEAD", ifGenerationMatch="0")
    other = cloud.put(bucket, "HEAD", b"first")
    assert send(cloud, url, "bytes 0-4/5", b"later").status_code == 412
    live = cloud.object("GET", bucket, "HEAD").json()
    assert live["generation"] == other.json()["generation"]
    path = f"/upload/storage/v1/b/{bucket}/o"
    params = {"uploadType": "resumable", "name": "HEAD", "ifGenerationMatch": "0"}
    assert cloud.call("POST", path, params=params).status_code == 412


# Reading


@pytest.mark.parametrize(
    ("text", "status", "body", "shown"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=7-99", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
    ],
)
def test_ranges(
    cloud: LocalCloud, bucket: str, text: str, status: int, body: bytes | None, shown: str
) -> None:
    cloud.put(bucket, "digits", b"0123456789")
    answer = cloud.object("GET", bucket, "digits", params={"alt": "media"}, headers={"Range": text})
    assert (answer.status_code, answer.headers["content-range"]) == (status, shown)
    if body is not None:
        assert answer.content == body


def walk(cloud: LocalCloud, bucket: str, **params: str) -> tuple[list[str], list[str]]:
    names: list[str] = []
    prefixes: list[str] = []
    while True:
        page = cloud.call("GET", f"/storage/v1/b/{bucket}/o", params=params).json()
        names += [item["name"] for item in page.get("items", [])]
        prefixes += page.get("prefixes", [])
        if "nextPageToken" not in page:
            return names, prefixes
        params["pageToken"] = page["nextPageToken"]


@pytest.mark.parametrize("page", ["1", "2", "1000"])
def test_listing(cloud: LocalCloud, bucket: str, page: str) -> None:
    seed(cloud, bucket, "a", "r/1", "r/2", "r/t/3", "r/t/4", "r/u", "s/5", "é")
    assert walk(cloud, bucket, maxResults=page)[0] == [
        *("a", "r/1", "r/2", "r/t/3", "r/t/4", "r/u", "s/5", "é")
    ]
    assert walk(cloud, bucket, maxResults=page, delimiter="/") == (["a", "é"], ["r/", "s/"])
    inside = walk(cloud, bucket, maxResults=page, prefix="r/", delimiter="/")
    assert inside == (["r/1", "r/2", "r/u"], ["r/t/"])
    assert walk(cloud, bucket, maxResults=page, startOffset="r/2", endOffset="s")[0] == [
        *("r/2", "r/t/3", "r/t/4", "r/u")
    ]
    assert walk(cloud, bucket, prefix="nothing") == ([], [])


def test_versions(cloud: LocalCloud) -> None:
    bucket = make_bucket(cloud, versioning={"enabled": True})
    old = cloud.put(bucket, "v", b"old").json()["generation"]
    time.sleep(1.01)
    new = cloud.put(bucket, "v", b"new").json()["generation"]
    params = {"alt": "media", "generation": old}
    assert cloud.object("GET", bucket, "v", params=params).content == b"old"
    cloud.object("DELETE", bucket, "v")
    assert cloud.object("GET", bucket, "v").status_code == 404
    assert walk(cloud, bucket) == ([], [])
    assert walk(cloud, bucket, versions="true") == (["v", "v"], [])
    refused = cloud.call("DELETE", f"/storage/v1/b/{bucket}")
    assert (refused.status_code, reason(refused)) == (409, "conflict")
    for generation in (old, new):
        cloud.object("DELETE", bucket, "v", params={"generation": generation})
    assert cloud.call("DELETE", f"/storage/v1/b/{bucket}").status_code == 204


def test_compose_and_rewrite(cloud: LocalCloud, bucket: str) -> None:
    cloud.put(bucket, "a", b"left ")
    cloud.put(bucket, "b", b"right")
    body = {"sourceObjects": [{"name": "a"}, {"name": "b"}]}
    kept = cloud.call("POST", f"/storage/v1/b/{bucket}/o/c/compose", json=body).json()
    assert (kept["componentCount"], kept["crc32c"]) == (2, crc32c(b"left right"))
    path = f"/storage/v1/b/{bucket}/o/c/rewriteTo/b/{bucket}/o/d%2Fe"
    assert cloud.call("POST", path).json()["done"] is True
    media = cloud.object("GET", bucket, "d/e", params={"alt": "media"})
    assert media.content == b"left right"


# Buckets


def test_bucket_defaults_and_patch(cloud: LocalCloud, bucket: str) -> None:
    path = f"/storage/v1/b/{bucket}"
    shown = cloud.call("GET", path).json()
    assert shown["softDeletePolicy"]["retentionDurationSeconds"] == "604800"
    assert shown["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"] is True
    assert (shown["location"], shown["metageneration"]) == ("US-CENTRAL1", "1")
    changes = {"labels": {"a": "1", "b": "2"}, "softDeletePolicy": {"retentionDurationSeconds": 0}}
    changed = cloud.call("PATCH", path, json=changes).json()
    assert changed["softDeletePolicy"]["retentionDurationSeconds"] == "0"
    changed = cloud.call("PATCH", path, json={"labels": {"a": None}}).json()
    assert (changed["labels"], changed["metageneration"]) == ({"b": "2"}, "3")
    stale = cloud.call("PATCH", path, json={}, params={"ifMetagenerationMatch": "1"})
    assert stale.status_code == 412


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "Capitals"}, 400),
        ({"name": "ok-name", "colour": "red"}, 400),
        ({"name": "TAKEN"}, 409),
    ],
)
def test_bad_bucket(cloud: LocalCloud, bucket: str, body: dict[str, str], status: int) -> None:
    if body["name"] == "TAKEN":
        body = {"name": bucket}
    answer = cloud.call("POST", "/storage/v1/b", params={"project": PROJECT}, json=body)
    assert answer.status_code == status
    other = cloud.call("POST", "/storage/v1/b", params={"project": "other"}, json={"name": "n-n"})
    assert other.status_code == 400


def test_absent_bucket_and_unescaped_name(cloud: LocalCloud, bucket: str) -> None:
    assert cloud.put("no-such-bucket", "a").status_code == 404
    seed(cloud, bucket, "a/b")
    assert cloud.call("GET", f"/storage/v1/b/{bucket}/o/a/b").status_code == 501


# What is deleted


def soft_bucket(cloud: LocalCloud) -> str:
    return make_bucket(cloud, softDeletePolicy={"retentionDurationSeconds": 604800})


def test_a_replaced_object_can_be_restored(cloud: LocalCloud) -> None:
    bucket = soft_bucket(cloud)
    old = cloud.put(bucket, "a/dear", b"old").json()["generation"]
    assert cloud.object("DELETE", bucket, "a/dear").status_code == 204
    listing = {"softDeleted": "true", "prefix": "a/"}
    assert walk(cloud, bucket, **listing) == (["a/dear"], [])
    asked = {"softDeleted": "true", "generation": old}
    shown = cloud.object("GET", bucket, "a/dear", params=asked).json()
    assert shown["hardDeleteTime"] > shown["softDeleteTime"]
    assert cloud.object("GET", bucket, "a/dear", params={"generation": old}).status_code == 404
    path = f"/storage/v1/b/{bucket}/o/a%2Fdear/restore"
    assert cloud.call("POST", path).status_code == 400
    assert cloud.call("POST", path, params={"generation": "1"}).status_code == 404
    time.sleep(1.01)
    back = cloud.call("POST", path, params={"generation": old})
    assert int(back.json()["generation"]) > int(old)
    assert cloud.object("GET", bucket, "a/dear", params={"alt": "media"}).content == b"old"


def test_without_soft_delete_bytes_go_at_once(cloud: LocalCloud) -> None:
    bucket = make_bucket(cloud, softDeletePolicy={"retentionDurationSeconds": 0})
    generation = cloud.put(bucket, "a").json()["generation"]
    file = cloud.state / "storage/bytes" / generation
    assert file.exists()
    cloud.object("DELETE", bucket, "a")
    assert not file.exists()
    assert walk(cloud, bucket, softDeleted="true") == ([], [])


@pytest.mark.parametrize("seconds", [1, 604799, 7776001])
def test_retention_has_limits(cloud: LocalCloud, bucket: str, seconds: int) -> None:
    change = {"softDeletePolicy": {"retentionDurationSeconds": seconds}}
    answer = cloud.call("PATCH", f"/storage/v1/b/{bucket}", json=change)
    assert answer.status_code == 400
    assert str(seconds) in answer.json()["error"]["message"]


def test_move_is_one_step(cloud: LocalCloud, bucket: str) -> None:
    cloud.put(bucket, "from", b"data")
    moved = cloud.call("POST", f"/storage/v1/b/{bucket}/o/from/moveTo/o/d%2Fto")
    assert (moved.status_code, moved.json()["name"]) == (200, "d/to")
    assert walk(cloud, bucket) == (["d/to"], [])
    assert cloud.object("GET", bucket, "d/to", params={"alt": "media"}).content == b"data"


def test_the_write_limit_can_be_switched_off(own_cloud: LocalCloud) -> None:
    bucket = make_bucket(own_cloud)
    switch = {"write_interval_sec": 0}
    assert own_cloud.call("POST", "/_local/switches", json=switch).status_code == 200
    assert [own_cloud.put(bucket, "heartbeat").status_code for _ in range(3)] == [200] * 3
    bad = own_cloud.call("POST", "/_local/switches", json={"write_interval_sec": "soon"})
    assert bad.status_code == 400


# Names


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/abs", "a//b", "..a", "é" * 512, "a\x00b", "?#%2F", "sp ace "]
)
def test_any_name_is_an_object_but_never_a_path(cloud: LocalCloud, bucket: str, name: str) -> None:
    kept = cloud.put(bucket, name, b"here")
    assert kept.status_code == 200
    assert cloud.object("GET", bucket, name, params={"alt": "media"}).content == b"here"
    assert walk(cloud, bucket) == ([name], [])
    files = {file.name for file in (cloud.state / "storage/bytes").iterdir()}
    assert kept.json()["generation"] in files
    assert all(file.isdigit() for file in files)


@pytest.mark.parametrize(
    "name", [".", "..", "a\nb", "a\rb", "é" * 513, ".well-known/acme-challenge/x"]
)
def test_forbidden_names(cloud: LocalCloud, bucket: str, name: str) -> None:
    assert cloud.put(bucket, name).status_code == 400


def test_a_name_with_half_a_character_is_refused(cloud: LocalCloud, bucket: str) -> None:
    request = multipart({"name": "a\ud800"}, b"data")
    assert cloud.call("POST", f"/upload/storage/v1/b/{bucket}/o", **request).status_code == 400
    assert cloud.call("GET", f"/storage/v1/b/{bucket}/o/%FF").status_code == 400


# Bad input: each is refused with a 4xx, and the cloud keeps serving


BAD_REQUESTS: list[tuple[bytes, bytes]] = [
    (b"\x16\x03\x01 garbage\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: HOST\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", b"4"),
    (
        b"POST PATH?uploadType=media&name=n HTTP/1.1\r\nHost: HOST\r\nContent-Length: -5\r\n\r\n",
        b"4",
    ),
    (
        b"POST PATH?uploadType=media&name=n HTTP/1.1\r\nHost: HOST\r\nContent-Length: "
        b"9999999999999999\r\n\r\n",
        b"400",
    ),
    (
        b"POST PATH?uploadType=multipart HTTP/1.1\r\nHost: HOST\r\nContent-Type: "
        b"multipart/related; boundary=b\r\nContent-Length: 12\r\n\r\n--b\r\n{}\r\n--b",
        b"400",
    ),
    (
        b"POST PATH?uploadType=resumable HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json"
        b"\r\nContent-Length: 11\r\n\r\n"
        b'{"name": 5}',
        b"400",
    ),
    (
        b"POST PATH?uploadType=resumable HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json"
        b"\r\nContent-Length: 30\r\n\r\n" + b"[" * 30,
        b"400",
    ),
]


@pytest.mark.parametrize("number", range(len(BAD_REQUESTS)))
def test_an_invalid_request_is_refused(cloud: LocalCloud, bucket: str, number: int) -> None:
    raw, status = BAD_REQUESTS[number]
    raw = raw.replace(b"PATH", f"/upload/storage/v1/b/{bucket}/o".encode())
    address = ("127.0.0.1", int(cloud.url.rpartition(":")[2]))
    raw = raw.replace(b"HOST", f"127.0.0.1:{address[1]}".encode())
    with socket.create_connection(address, timeout=60) as connection:
        with contextlib.suppress(ConnectionError):  # it may not want to read all of it
            connection.sendall(raw)
        answer = connection.recv(100)
    assert answer.startswith(b"HTTP/1.1 " + status), answer
    assert walk(cloud, bucket) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        *("bytes 5-2/10", "bytes 0-9/5", "bytes 0-9", "0-9/10", "bytes -/-", "bytes 0-3/10"),
        f"bytes 0-{10**18}/{10**18 + 1}",
    ],
)
def test_wrong_content_range(cloud: LocalCloud, bucket: str, text: str) -> None:
    url = open_session(cloud, bucket, "big")
    assert send(cloud, url, text, b"0123456789").status_code == 400
    assert send(cloud, url, "bytes 0-9/10", b"0123456789").status_code == 200


@pytest.mark.parametrize(
    "metadata",
    [
        {"contentType": "text/plain\r\nX-Evil: 1"},
        {"metadata": {"k": "v" * 9000}},
        {"metadata": {"k": "\ud800"}},
        {"storageClass": "GOLD"},
    ],
)
def test_impossible_fields_are_refused(
    cloud: LocalCloud, bucket: str, metadata: dict[str, Any]
) -> None:
    request = multipart({"name": "d", **metadata}, b"data")
    assert cloud.call("POST", f"/upload/storage/v1/b/{bucket}/o", **request).status_code == 400


def test_fields_need_not_be_latin(cloud: LocalCloud, bucket: str) -> None:
    shown = 'attachment; filename="π.txt"'
    request = multipart({"name": "d", "contentDisposition": shown}, b"data")
    assert cloud.call("POST", f"/upload/storage/v1/b/{bucket}/o", **request).status_code == 200
    media = cloud.object("GET", bucket, "d", params={"alt": "media"})
    assert media.headers["content-disposition"].encode("latin-1").decode() == shown


@given(
    method=strategies.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE"]),
    tail=strategies.sampled_from(
        ["", "/o", "/o/a", "/o/a/compose", "/o/a/rewriteTo/b/B/o/c", "/o/a/restore", "/iam", "/x"]
    ),
    query=strategies.dictionaries(
        strategies.sampled_from(
            ["generation", "maxResults", "pageToken", "rewriteToken", "ifGenerationMatch", "prefix"]
        ),
        strategies.text(max_size=8),
    ),
    body=strategies.recursive(
        strategies.none() | strategies.integers() | strategies.text(max_size=4),
        lambda inner: (
            strategies.lists(inner, max_size=2)
            | strategies.dictionaries(
                strategies.sampled_from(
                    ["sourceObjects", "name", "bindings", "lifecycle", "rule", "metadata"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=6,
    ),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_request_breaks_the_cloud(
    cloud: LocalCloud, method: str, tail: str, query: dict[str, str], body: Any
) -> None:
    kept = "kept-for-nonsense"
    cloud.call("POST", "/storage/v1/b", params={"project": PROJECT}, json={"name": kept})
    path = f"/storage/v1/b/{kept}{tail.replace('B', kept)}"
    answer = cloud.call(method, path, params=query, json=body)
    assert answer.status_code < 500 or answer.status_code == 501, answer.text


# A crash


def test_a_cloud_killed_in_mid_write_loses_nothing(own_cloud: LocalCloud) -> None:
    versioned = make_bucket(own_cloud, versioning={"enabled": True})
    plain = make_bucket(own_cloud)
    own_cloud.call("POST", "/_local/switches", json={"write_interval_sec": 0})
    answered: dict[tuple[str, str], list[bytes]] = {}
    sent: dict[tuple[str, str], bytes] = {}
    enough = threading.Event()

    def write(worker: int) -> None:
        with requests.Session() as http, contextlib.suppress(requests.RequestException):
            http.trust_env = False
            for number in range(100_000):
                place = ((versioned, plain)[number % 2], f"w/{worker}/{number // 2 % 5}")
                data = f"{worker} {number} ".encode() * (1 + number % 3 * 20_000)
                sent[place] = data
                query = {"uploadType": "media", "name": place[1]}
                path = f"{own_cloud.url}/upload/storage/v1/b/{place[0]}/o"
                assert http.post(path, params=query, data=data, timeout=60).status_code == 200
                answered.setdefault(place, []).append(data)
                if number > 25:
                    enough.set()

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, worker) for worker in range(4)]
        assert enough.wait(60)
        own_cloud.stop(signal.SIGKILL)
        for writer in writers:
            writer.result(30)
    own_cloud.start()
    for (bucket, name), kept in answered.items():
        found = own_cloud.object("GET", bucket, name, params={"alt": "media"}).content
        assert found in (kept[-1], sent[bucket, name])
        shown = own_cloud.object("GET", bucket, name).json()
        assert (shown["size"], shown["md5Hash"]) == (str(len(found)), md5(found))
    names = walk(own_cloud, versioned, versions="true")[0]
    assert len(names) >= sum(len(kept) for (bucket, _), kept in answered.items() if bucket != plain)
    assert not list((own_cloud.state / "storage/uploads").iterdir())


def test_a_torn_last_line_does_not_count_as_a_write(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(("t", "a", {"n": 1}))
    journal.write(("t", "b", {"n": 2}), ("u", "c", {"n": 3}))
    journal.close()
    with (tmp_path / "journal").open("ab") as file:
        file.write(b'[["t","a",null],["t","d",{"n"')
    for _ in range(2):  # the second finds what the first has left
        journal = Journal(tmp_path / "journal")
        assert dict(journal.table("t")) == {"a": {"n": 1}, "b": {"n": 2}}
        assert list(journal.table("u").names_from("")) == ["c"]
        journal.close()


def test_the_journal_does_not_grow_without_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.localcloud.storage.journal.COMPACT_FROM", 50)
    journal = Journal(tmp_path / "journal")
    for number in range(1000):
        journal.write(("t", f"heartbeat-{number % 3}", {"n": number}))
    journal.close()
    assert (tmp_path / "journal").stat().st_size < 5000
    again = Journal(tmp_path / "journal")
    assert dict(again.table("t")) == {f"heartbeat-{n % 3}": {"n": n} for n in range(997, 1000)}
    again.close()


# Answers


def test_answers_fit_googles_schema(cloud: LocalCloud) -> None:
    bucket = make_bucket(cloud, versioning={"enabled": True}, labels={"a": "b"})
    cloud.call("PATCH", f"/storage/v1/b/{bucket}", json={"lifecycle": {"rule": []}})
    path = f"/storage/v1/b/{bucket}"
    metadata = {"name": "a", "metadata": {"k": "v"}, "cacheControl": "no-store"}
    upload = cloud.call("POST", f"/upload{path}/o", **multipart(metadata, b"data")).json()
    cloud.object("DELETE", bucket, "a")
    cloud.put(bucket, "b")
    sources = {"sourceObjects": [{"name": "b"}]}
    for schema, answer in (
        ("Object", upload),
        ("Object", cloud.object("GET", bucket, "b").json()),
        ("Object", cloud.call("POST", f"{path}/o/c/compose", json=sources).json()),
        ("RewriteResponse", cloud.call("POST", f"{path}/o/b/rewriteTo/b/{bucket}/o/d").json()),
        ("Objects", cloud.call("GET", f"{path}/o", params={"versions": "true"}).json()),
        ("Objects", cloud.call("GET", f"{path}/o", params={"softDeleted": "true"}).json()),
        ("Bucket", cloud.call("GET", path).json()),
        ("Buckets", cloud.call("GET", "/storage/v1/b").json()),
        ("Policy", cloud.call("GET", f"{path}/iam").json()),
        ("BucketStorageLayout", cloud.call("GET", f"{path}/storageLayout").json()),
        ("ManagedFolders", cloud.call("GET", f"{path}/managedFolders").json()),
    ):
        check_answer("storage.v1", schema, answer)


# The client library


def test_client_library_compares_and_swaps(client: storage.Client, bucket: str) -> None:
    blob = client.bucket(bucket).blob("run/HEAD")
    blob.upload_from_string(b"one", if_generation_match=0)
    generation = blob.generation
    assert generation
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"two", if_generation_match=0)
    assert blob.download_as_bytes(if_generation_match=generation) == b"one"
    assert blob.download_as_bytes(start=1, end=2) == b"ne"
    blob.reload()
    assert (blob.generation, blob.size, blob.crc32c) == (generation, 3, crc32c(b"one"))
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=generation + 1)
    blob.delete(if_generation_match=generation)
    with pytest.raises(exceptions.NotFound):
        blob.download_as_bytes()


def test_client_library_uploads_in_chunks(client: storage.Client, bucket: str) -> None:
    data = bytes(range(256)) * 37 * KIB  # more than the library sends in one request
    blob = client.bucket(bucket).blob("large", chunk_size=4 * MIB)
    blob.upload_from_string(data, if_generation_match=0, checksum="crc32c")
    assert blob.crc32c == crc32c(data)
    assert client.bucket(bucket).blob("large").download_as_bytes() == data


def test_client_library_lists(client: storage.Client, cloud: LocalCloud, bucket: str) -> None:
    seed(cloud, bucket, "p/1", "p/2", "p/q/3", "z")
    listing = client.list_blobs(bucket, prefix="p/", delimiter="/", page_size=1)
    assert [blob.name for blob in listing] == ["p/1", "p/2"]
    assert listing.prefixes == {"p/q/"}
    assert bucket in {found.name for found in client.list_buckets()}
    own = [make_bucket(cloud) for _ in range(3)]
    for size in (1, 2, 3, 1000):
        paged = [found.name for found in client.list_buckets(page_size=size)]
        assert paged == sorted(paged) and {bucket, *own} <= set(paged)
    assert [found.name for found in client.list_buckets(prefix=own[0])] == own[:1]
    assert client.get_bucket(bucket).location == "US-CENTRAL1"


def test_client_library_deletes_a_read_generation(client: storage.Client, bucket: str) -> None:
    blob = client.bucket(bucket).blob("one")
    blob.upload_from_string(b"data")
    old = client.bucket(bucket).blob("one", generation=blob.generation)
    assert old.download_as_bytes() == b"data"
    old.delete()
    assert not client.bucket(bucket).blob("one").exists()


# Speed and memory


def test_hundreds_of_small_requests_a_second(cloud: LocalCloud, bucket: str) -> None:
    started = time.monotonic()
    for number in range(100):
        assert cloud.put(bucket, f"small/{number}", b"{}").status_code == 200
        assert cloud.object("GET", bucket, f"small/{number}").status_code == 200
    # Far below what it does, so that a busy machine does not turn this red.
    assert time.monotonic() - started < 10
