"""The clients that people use against the storage API, unchanged: each finds what it needs."""

import gzip
import importlib.resources
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import googleapiclient.discovery
import googleapiclient.errors
import googleapiclient.http
import httplib2
import pytest
import requests
from gcsfs.core import GCSFileSystem
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.oauth2.credentials import Credentials
from google.resumable_media.requests import ResumableUpload

from outlast.base.retry import ONCE
from outlast.bucket import rungs
from outlast.bucket.layout import RungValue, SweepLayout
from outlast.bucket.store import Forbidden, GcsStore, NotFound, Unavailable
from outlast.spec.sweep_rules import SweepRules
from tests.localcloud.iam.test_iam import condition, grant, make_account
from tests.localcloud.local_cloud import PROJECT, LocalCloud, make_bucket

KIB = 1024
MIB = 1024 * KIB
GCLOUD_SEC = 60


@pytest.fixture
def client(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Client]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    client = storage.Client(project=PROJECT, credentials=AnonymousCredentials())
    client._http.trust_env = False
    yield client
    client._http.close()
    client.close()


@pytest.fixture
def fast(cloud: LocalCloud) -> Iterator[None]:
    """Writes of a name may follow each other at once."""
    set_switch(cloud, write_interval_sec=0)
    yield
    set_switch(cloud, write_interval_sec=1.0)


def set_switch(cloud: LocalCloud, **switches: float) -> None:
    assert cloud.call("POST", "/_local/switches", json=switches).status_code == 200


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# Outlast's store


@pytest.mark.parametrize("absent_forbidden", [False, True])
def test_an_absent_object_below_a_condition_is_absent_with_404_and_with_403(
    own_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch, absent_forbidden: bool
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", own_cloud.url)
    set_switch(own_cloud, absent_forbidden=absent_forbidden)
    bucket, email = make_bucket(own_cloud), make_account(own_cloud)
    own = condition(bucket, "e/")
    member = f"serviceAccount:{email}"
    granted = grant(own_cloud, bucket, "roles/storage.objectUser", member, own)
    assert granted.status_code == 200
    answer = own_cloud.object("GET", bucket, "e/HEAD", vm=("vm-1", email))
    assert answer.status_code == (403 if absent_forbidden else 404)
    store = GcsStore(bucket, credentials=Credentials(token=f"vm-token-vm-1:{email}"))
    store.put("e/HEAD-2", b"its name begins as the absent one's")
    for read in (
        lambda: store.stat("e/HEAD"),
        lambda: store.get("e/HEAD"),
        lambda: store.get("e/HEAD", generation=1),
        lambda: store.read_range("e/HEAD", 0, 1, generation=1),
        lambda: store.delete("e/HEAD", generation=1),
        lambda: store.copy("e/HEAD", "e/copy", source_generation=1),
    ):
        with pytest.raises(NotFound):
            read()
    assert store.get("e/HEAD-2")[0].startswith(b"its name")
    own_cloud.put(bucket, "other/secret")
    for hidden in ("other/secret", "other/absent"):
        with pytest.raises(Forbidden):
            store.stat(hidden)
    own_cloud.add_fault("before", {"status": 403}, method="GET", object="^e/HEAD-2$")
    with pytest.raises(Forbidden):
        store.stat("e/HEAD-2")
    store.close()


def test_a_trial_of_a_sweep_creates_its_objects_and_replaces_none(
    cloud: LocalCloud, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the roles that the components give it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    email, layout = make_account(cloud), SweepLayout("lr")
    for role in ("objectViewer", "objectCreator"):
        below = condition(bucket, f"{layout.prefix}/")
        member = f"serviceAccount:{email}"
        assert grant(cloud, bucket, f"roles/storage.{role}", member, below).status_code == 200
    store = GcsStore(bucket, credentials=Credentials(token=f"vm-token-vm-1:{email}"))
    rules = SweepRules.parse(
        {"name": "lr", "metric": "acc", "goal": "max", "rule": "halving", "minStep": 10, "eta": 2}
    )
    assert rungs.decisions_of(store, layout, "a") == []
    values = [
        RungValue(run, 10, 10, number, number, number) for run, number in (("a", 2.0), ("b", 1.0))
    ]
    for value in values:
        assert rungs.record_value(store, layout, value) == value
    chosen = [str(rungs.decide(store, layout, value, rules).choice) for value in values]
    assert chosen == ["continue", "stop"]
    again = replace(values[1], value=9.0)
    assert rungs.record_value(store, layout, again) == values[1]
    assert [one.run for one in rungs.decisions_of(store, layout, "b")] == ["b"]
    with pytest.raises(Forbidden):
        store.put(layout.value(10, "a"), b"forged")
    with pytest.raises(Forbidden):
        rungs.decisions_of(store, SweepLayout("lr-2"), "a", patience=ONCE)
    store.close()


def test_a_read_that_breaks_again_and_again_resumes_as_long_as_bytes_arrive(
    cloud: LocalCloud, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own limit is over after the first break."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    data = noise(8 * MIB)
    cloud.put(bucket, "big", data)
    store = GcsStore(bucket, credentials=AnonymousCredentials(), read_retry_sec=0)
    # A reset throws away what the client has not read: it gets time to.
    broken = {"delay_sec": 1, "reset": True}
    cloud.add_fault("mid-body", broken, method="GET", path="alt=media", count=3)
    assert store.get("big")[0] == data
    (rule,) = cloud.call("GET", "/_local/faults").json()
    assert rule["fired"] == 3
    cloud.call("DELETE", "/_local/faults")
    cloud.add_fault("before", {"reset": True}, method="GET", path="alt=media", count=2)
    with pytest.raises(Unavailable):
        store.get("big")
    store.close()


# google-cloud-storage


def test_the_library_resumes_an_interrupted_upload(
    client: storage.Client, cloud: LocalCloud, bucket: str
) -> None:
    data = noise(3 * MIB)
    url = client.bucket(bucket).blob("big").create_resumable_upload_session(size=len(data))
    assert url and url.startswith(cloud.url)
    cloud.add_fault("mid-body", {"reset": True}, method="PUT", object="^big$")
    with pytest.raises(requests.ConnectionError):
        headers = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
        cloud.http.put(url, data=data, headers=headers, timeout=60)
    status = cloud.http.put(url, headers={"Content-Range": f"bytes */{len(data)}"}, timeout=60)
    received = int(status.headers.get("range", "bytes=0--1").rpartition("-")[2]) + 1
    assert status.status_code == 308
    assert received % (256 * KIB) == 0
    assert received < len(data)
    rest = {"Content-Range": f"bytes {received}-{len(data) - 1}/{len(data)}"}
    done = cloud.http.put(url, data=data[received:], headers=rest, timeout=60)
    assert done.status_code == 200
    assert client.bucket(bucket).blob("big").download_as_bytes() == data


def test_library_recovers_an_upload(cloud: LocalCloud, bucket: str, tmp_path: Path) -> None:
    data = noise(2 * MIB)
    path = tmp_path / "data"
    path.write_bytes(data)
    address = f"{cloud.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable"
    upload = ResumableUpload(address, 512 * KIB)
    with path.open("rb") as stream:
        upload.initiate(cloud.http, stream, {"name": "recovered"}, "text/plain")
        upload.transmit_next_chunk(cloud.http)
        cloud.add_fault("before", {"status": 400}, method="PUT", object="^recovered$")
        with pytest.raises(Exception, match="400"):
            upload.transmit_next_chunk(cloud.http)
        assert upload.invalid
        upload.recover(cloud.http)
        assert upload.bytes_uploaded == 512 * KIB
        while not upload.finished:
            upload.transmit_next_chunk(cloud.http)
    media = cloud.object("GET", bucket, "recovered", params={"alt": "media"})
    assert media.content == data


def test_library_composes_and_rewrites_in_steps(
    client: storage.Client, cloud: LocalCloud, bucket: str
) -> None:
    here = client.bucket(bucket)
    parts = [noise(MIB), noise(MIB + 1), b"", noise(10)]
    for number, part in enumerate(parts):
        here.blob(f"part/{number}").upload_from_string(part)
    whole = here.blob("whole")
    whole.content_type = "text/x-whole"
    whole.compose([here.blob(f"part/{n}") for n in range(len(parts))], if_generation_match=0)
    assert (whole.component_count, whole.md5_hash) == (4, None)
    assert whole.download_as_bytes() == b"".join(parts)
    with pytest.raises(exceptions.PreconditionFailed):
        whole.compose([here.blob("part/0")], if_generation_match=0)
    there = client.bucket(make_bucket(cloud, location="europe-west4", storageClass="NEARLINE"))
    set_switch(cloud, rewrite_bytes_per_call=MIB)
    copied = there.blob("copied")
    token, done, size = copied.rewrite(whole)
    assert (done, size) == (MIB, len(b"".join(parts)))
    assert not copied.exists()
    calls = 1
    while token:
        token, done, size = copied.rewrite(whole, token=token)
        calls += 1
    set_switch(cloud, rewrite_bytes_per_call=1 << 30)
    assert (calls, done) == (3, size)
    copied.reload()
    assert (copied.content_type, copied.storage_class) == ("text/x-whole", "NEARLINE")
    assert copied.download_as_bytes() == b"".join(parts)
    with pytest.raises(exceptions.BadRequest, match="token"):
        there.blob("other").rewrite(whole, token="made-up")


def test_library_deletes_in_batches(client: storage.Client, bucket: str) -> None:
    here = client.bucket(bucket)
    for number in range(5):
        here.blob(f"many/ü {number}").upload_from_string(b"x")
    with client.batch():
        for number in range(3):
            here.delete_blob(f"many/ü {number}")
    assert [blob.name for blob in client.list_blobs(bucket)] == ["many/ü 3", "many/ü 4"]
    with pytest.raises(exceptions.NotFound), client.batch():
        here.delete_blob("many/ü 3")
        here.delete_blob("absent")
    assert [blob.name for blob in client.list_blobs(bucket)] == ["many/ü 4"]
    lost: list[Any] = []
    here.delete_blobs(["absent", "many/ü 4"], on_error=lost.append)
    assert lost == ["absent"]
    assert list(client.list_blobs(bucket)) == []


@pytest.mark.usefixtures("fast")
def test_library_keeps_versions(client: storage.Client, cloud: LocalCloud) -> None:
    here = client.bucket(make_bucket(cloud))
    here.versioning_enabled = True
    here.patch()
    blob = here.blob("v")
    generations: list[Any] = []
    for text in (b"one", b"two", b"three"):
        blob.upload_from_string(text)
        generations.append(blob.generation)
    listed = [b.generation for b in client.list_blobs(here, versions=True)]
    assert listed == generations
    assert here.blob("v", generation=generations[0]).download_as_bytes() == b"one"
    here.copy_blob(here.blob("v"), here, "v", source_generation=generations[0])
    assert here.blob("v").download_as_bytes() == b"one"
    here.delete_blob("v", generation=generations[1])
    here.delete_blob("v")
    assert len(list(client.list_blobs(here, versions=True))) == 3
    assert list(client.list_blobs(here)) == []


@pytest.mark.usefixtures("fast")
def test_library_restores_a_deleted_object(client: storage.Client, cloud: LocalCloud) -> None:
    here = client.bucket(make_bucket(cloud))
    blob = here.blob("dear")
    blob.metadata = {"of": "mine"}
    blob.upload_from_string(b"first", content_type="text/plain")
    blob.upload_from_string(b"second")
    old = blob.generation
    blob.delete()
    gone = list(client.list_blobs(here, soft_deleted=True))
    assert [each.size for each in gone] == [5, 6]
    assert gone[1].hard_delete_time > gone[1].soft_delete_time
    shown = here.get_blob("dear", generation=old, soft_deleted=True)
    assert shown is not None and shown.generation == old
    back = here.restore_blob("dear", generation=gone[0].generation)
    assert int(back.generation or 0) > int(old or 0)
    assert back.download_as_bytes() == b"first"
    assert back.metadata == {"of": "mine"}
    with pytest.raises(exceptions.PreconditionFailed):
        here.restore_blob("dear", generation=old, if_generation_match=0)
    here.soft_delete_policy.retention_duration_seconds = 0
    here.patch()
    here.blob("dear").delete()
    with pytest.raises(exceptions.NotFound):
        here.restore_blob("dear", generation=back.generation)


def client_of(cloud: LocalCloud) -> storage.Client:
    options = {"api_endpoint": cloud.url}
    return storage.Client(PROJECT, AnonymousCredentials(), client_options=options)


def test_library_restores_a_deleted_bucket(own_cloud: LocalCloud) -> None:
    cloud, client = own_cloud, client_of(own_cloud)
    here = client.bucket(make_bucket(cloud, labels={"team": "a"}))
    here.blob("dear").upload_from_string(b"first")
    policy = here.get_iam_policy(requested_policy_version=3)
    policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"user:a@b.example"}})
    here.set_iam_policy(policy)
    here.reload()
    name, generation = here.name, here.generation
    with pytest.raises(exceptions.Conflict, match="not empty"):
        here.delete()
    here.blob("dear").delete()
    here.delete()
    assert client.lookup_bucket(name) is None
    (gone,) = [b for b in client.list_buckets(soft_deleted=True) if b.name == name]
    assert gone.hard_delete_time > gone.soft_delete_time
    shown = client.get_bucket(name, generation=generation, soft_deleted=True)
    assert shown.generation == generation

    client.close()
    cloud.stop(signal.SIGKILL)  # it is kept over a crash
    cloud.start()
    client = client_of(cloud)
    make_bucket(cloud, name=name)
    with pytest.raises(exceptions.Conflict, match="exists"):
        client.restore_bucket(name, generation)
    client.bucket(name).delete()
    back = client.restore_bucket(name, generation)
    assert (back.name, back.labels, back.soft_delete_time) == (name, {"team": "a"}, None)
    members = [b["members"] for b in back.get_iam_policy(requested_policy_version=3).bindings]
    assert {"user:a@b.example"} in members
    (dear,) = client.list_blobs(back, soft_deleted=True)
    assert back.restore_blob("dear", generation=dear.generation).download_as_bytes() == b"first"
    with pytest.raises(exceptions.NotFound, match="soft-deleted bucket"):
        client.restore_bucket(name, generation)
    client.close()


def test_library_reads_gzip_raw_or_decompressed(
    client: storage.Client, cloud: LocalCloud, bucket: str
) -> None:
    text = b"many lines\n" * 100_000
    kept = gzip.compress(text[:500_000]) + gzip.compress(text[500_000:])
    blob = client.bucket(bucket).blob("log.gz")
    blob.content_encoding = "gzip"
    blob.upload_from_string(kept, content_type="text/plain")
    assert blob.download_as_bytes() == text  # asks for gzip, and opens it
    assert blob.download_as_bytes(raw_download=True) == kept

    def plain(**headers: str) -> requests.Response:
        headers = {"Accept-Encoding": "identity", **headers}
        return cloud.object("GET", bucket, "log.gz", params={"alt": "media"}, headers=headers)

    for answer in (plain(), plain(Range="bytes=0-9")):  # whole, whatever is asked for
        assert (answer.status_code, answer.content) == (200, text)
        assert answer.headers["x-goog-stored-content-encoding"] == "gzip"
        assert answer.headers["x-goog-stored-content-length"] == str(len(kept))
        assert answer.headers["warning"] == "214 UploadServer gunzipped"
        assert not {"content-encoding", "content-length"} & set(answer.headers)
    asked = plain(**{"Accept-Encoding": "gzip", "Range": "bytes=0-9"})
    assert (asked.status_code, asked.headers["content-encoding"]) == (206, "gzip")
    blob.cache_control = "no-transform"
    blob.patch()
    raw = cloud.http.get(
        blob.media_link or "", headers={"Accept-Encoding": "identity"}, stream=True, timeout=10
    )
    assert raw.raw.read(decode_content=False) == kept


def test_library_sets_lifecycle_and_policies(client: storage.Client, cloud: LocalCloud) -> None:
    here = client.get_bucket(make_bucket(cloud))
    here.add_lifecycle_delete_rule(age=30, matches_prefix=["experiments/"])
    here.add_lifecycle_abort_incomplete_multipart_upload_rule(age=1)
    here.labels = {"team": "a"}
    here.patch()
    again = client.get_bucket(here.name)
    kinds = [rule["action"]["type"] for rule in again.lifecycle_rules]
    assert kinds == ["Delete", "AbortIncompleteMultipartUpload"]
    assert again.labels == {"team": "a"}
    again.clear_lifecycle_rules()
    again.patch()
    assert list(client.get_bucket(here.name).lifecycle_rules) == []
    policy = here.get_iam_policy(requested_policy_version=3)
    policy.version = 3
    name = f"projects/_/buckets/{here.name}/objects/a/"
    condition = {"title": "a", "expression": f"resource.name.startsWith('{name}')"}
    binding = {"role": "roles/storage.objectViewer", "members": {"allUsers"}}
    policy.bindings.append({**binding, "condition": condition})
    here.set_iam_policy(policy)
    kept = here.get_iam_policy(requested_policy_version=3)
    assert kept.bindings[-1]["condition"]["expression"] == condition["expression"]
    assert here.test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]


def test_library_reads_and_writes_as_files(client: storage.Client, bucket: str) -> None:
    data = noise(700 * KIB)
    blob = client.bucket(bucket).blob("file", chunk_size=256 * KIB)
    with blob.open("wb") as file:
        file.write(data)
    with blob.open("rb") as file:
        file.seek(300 * KIB)
        assert file.read(10) == data[300 * KIB : 300 * KIB + 10]
    blob.metadata = {"colour": "rot"}
    blob.patch()
    blob.reload()
    assert (blob.metadata, blob.metageneration) == ({"colour": "rot"}, 2)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)


# gcsfs


@pytest.fixture
def files(cloud: LocalCloud) -> Iterator[GCSFileSystem]:
    GCSFileSystem.clear_instance_cache()
    files = GCSFileSystem(
        project=PROJECT, token="anon", endpoint_url=cloud.url, use_listings_cache=False
    )
    yield files
    if files.session:
        GCSFileSystem.close_session(files.loop, files.session)
    GCSFileSystem.clear_instance_cache()


def test_gcsfs(files: GCSFileSystem, bucket: str, tmp_path: Path) -> None:
    data = noise(900 * KIB)
    files.pipe(f"{bucket}/d/small", b"small")
    with files.open(f"{bucket}/d/big", "wb", block_size=256 * KIB) as file:
        file.write(data)
    assert files.cat(f"{bucket}/d/small") == b"small"
    with files.open(f"{bucket}/d/big", "rb") as file:
        file.seek(500 * KIB)
        assert file.read() == data[500 * KIB :]
    assert files.info(f"{bucket}/d/big")["size"] == len(data)
    assert sorted(files.ls(f"{bucket}/d")) == [f"{bucket}/d/big", f"{bucket}/d/small"]
    assert not files.exists(f"{bucket}/d/absent")
    files.cp(f"{bucket}/d/small", f"{bucket}/e/copy")
    files.mv(f"{bucket}/e/copy", f"{bucket}/e/moved")
    assert not files.exists(f"{bucket}/e/copy")
    files.get(f"{bucket}/e/moved", str(tmp_path / "moved"))
    assert (tmp_path / "moved").read_bytes() == b"small"
    assert files.find(bucket) == [f"{bucket}/{name}" for name in ("d/big", "d/small", "e/moved")]
    files.rm(f"{bucket}/d", recursive=True)
    assert files.find(bucket) == [f"{bucket}/e/moved"]
    with pytest.raises(FileNotFoundError):
        files.cat(f"{bucket}/d/small")


# google-api-python-client


def test_python_api_client(cloud: LocalCloud, bucket: str, tmp_path: Path) -> None:
    documents = importlib.resources.files("googleapiclient.discovery_cache") / "documents"
    document = json.loads((documents / "storage.v1.json").read_text())
    document["rootUrl"] = cloud.url + "/"
    document["baseUrl"] = cloud.url + document["servicePath"]
    http = httplib2.Http(proxy_info=None)
    http.redirect_codes = http.redirect_codes - {308}  # as the library's own `build_http` does
    service = googleapiclient.discovery.build_from_document(document, http=http)
    try:
        path = tmp_path / "data"
        path.write_bytes(noise(600 * KIB))
        body = googleapiclient.http.MediaFileUpload(str(path), chunksize=256 * KIB, resumable=True)
        request = service.objects().insert(
            bucket=bucket, name="a/b", media_body=body, ifGenerationMatch="0"
        )
        steps, kept = 0, None
        while kept is None:
            _, kept = request.next_chunk()
            steps += 1
        assert (steps, kept["size"]) == (3, str(600 * KIB))
        media = service.objects().get_media(bucket=bucket, object="a/b").execute()
        assert media == path.read_bytes()
        answers: dict[str, Any] = {}
        batch = service.new_batch_http_request(
            lambda number, answer, error: answers.update({number: error or answer})
        )
        batch.add(service.objects().get(bucket=bucket, object="a/b"), request_id="there")
        batch.add(service.objects().get(bucket=bucket, object="absent"), request_id="absent")
        batch.execute(http=http)
        assert answers["there"]["generation"] == kept["generation"]
        assert answers["absent"].status_code == 404
        listed = service.objects().list(bucket=bucket, prefix="a/").execute()
        assert [item["name"] for item in listed["items"]] == ["a/b"]
        with pytest.raises(googleapiclient.errors.HttpError) as refused:
            service.objects().delete(bucket=bucket, object="a/b", ifGenerationMatch="1").execute()
        assert refused.value.status_code == 412
    finally:
        service.close()
        http.close()


# gcloud


@pytest.mark.rehearsal
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud(cloud: LocalCloud, bucket: str, tmp_path: Path) -> None:
    def gcloud(*words: str) -> str:
        environment = {name: v for name, v in os.environ.items() if "proxy" not in name.lower()}
        environment |= {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{cloud.url}/storage/v1/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CONFIG": str(tmp_path / "config"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }
        done = subprocess.run(
            ["gcloud", "storage", *words],
            capture_output=True,
            text=True,
            env=environment,
            timeout=GCLOUD_SEC,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    data = tmp_path / "data"
    data.write_bytes(noise(300 * KIB))
    place = f"gs://{bucket}"
    gcloud("cp", str(data), f"{place}/d/data")
    assert f"{place}/d/data" in gcloud("ls", "--recursive", place)
    gcloud("cp", f"{place}/d/data", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data.read_bytes()
    gcloud("rm", f"{place}/d/data")
    assert cloud.object("GET", bucket, "d/data").status_code == 404
