"""What an image reference means: against an API of this test's own, over HTTP."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outlast.cloud import compute, credentials
from outlast.cloud.images import (
    PYTORCH_GPU,
    UBUNTU,
    Image,
    ImageMissing,
    Unknown,
    resolve,
)

HOST = "https://www.googleapis.com/compute/beta/projects"
IMAGES = {
    "/projects/own/global/images/family/trained": {"name": "trained-1", "family": "trained"},
    "/projects/own/global/images/trained-0": {
        "name": "trained-0",
        "family": "trained",
        "deprecated": {"state": "DEPRECATED", "replacement": f"{HOST}/own/global/images/trained-1"},
    },
    "/projects/own/global/images/trained-old": {
        "name": "trained-old",
        "deprecated": {"state": "OBSOLETE"},
    },
    "/projects/debian-cloud/global/images/family/debian-13": {
        "name": "debian-13-v1",
        "family": "debian-13",
    },
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if "secret" in self.path:
            status, answer = 403, {"error": {"message": "compute.images.get is missing"}}
        elif self.path in IMAGES:
            owner = self.path.split("/")[2]
            found = IMAGES[self.path]
            link = f"{HOST}/{owner}/global/images/{found['name']}"
            status, answer = 200, {**found, "selfLink": link, "diskSizeGb": "10"}
        else:
            status, answer = 404, {"error": {"message": "was not found"}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(autouse=True)
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    monkeypatch.setenv(compute.ENDPOINT_VARIABLE, url)
    monkeypatch.setenv(credentials.TOKEN_VARIABLE, "x")
    yield url
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("reference", "path"),
    [
        ("projects/own/global/images/family/trained", "projects/own/global/images/trained-1"),
        ("global/images/family/trained", "projects/own/global/images/trained-1"),
        ("family/trained", "projects/own/global/images/trained-1"),
        ("trained", "projects/own/global/images/trained-1"),
        ("trained-0", "projects/own/global/images/trained-0"),
        ("own/trained", "projects/own/global/images/trained-1"),
        ("debian-13", "projects/debian-cloud/global/images/debian-13-v1"),
        ("debian-cloud/debian-13", "projects/debian-cloud/global/images/debian-13-v1"),
        (
            "https://www.googleapis.com/compute/v1/projects/own/global/images/trained-0",
            "projects/own/global/images/trained-0",
        ),
    ],
)
def test_each_form_of_a_reference_means_its_image(reference: str, path: str):
    found = resolve(reference, "own")
    assert isinstance(found, Image)
    assert found.path == path
    assert found.self_link == f"https://www.googleapis.com/compute/v1/{path}"


def test_a_deprecated_image_is_usable_and_an_obsolete_one_is_not():
    old, older = resolve("trained-0", "own"), resolve("trained-old", "own")
    assert isinstance(old, Image) and isinstance(older, Image)
    assert (old.state, old.usable) == ("DEPRECATED", True)
    assert old.replacement.endswith("/trained-1")
    assert (older.state, older.usable) == ("OBSOLETE", False)


@pytest.mark.parametrize(
    ("family", "successor"),
    [
        ("deeplearning-platform-release/pytorch-2-7-cu128-ubuntu-2204-nvidia-570", PYTORCH_GPU),
        ("deeplearning-platform-release/pytorch-latest-gpu", PYTORCH_GPU),
        ("deeplearning-platform-release/common-cpu", UBUNTU),
        ("ubuntu-os-cloud/ubuntu-2004-lts", UBUNTU),
    ],
)
def test_a_retired_family_is_gone_and_its_successor_is_named(family: str, successor: str):
    project, _, name = family.partition("/")
    found = resolve(f"projects/{project}/global/images/family/{name}", "own")
    assert isinstance(found, ImageMissing)
    assert found.successor == successor
    assert found.why.endswith(f"its successor is {successor}")


@pytest.mark.parametrize("reference", ["nowhere", PYTORCH_GPU, "a/b/c"])
def test_what_never_was_has_no_successor(reference: str):
    found = resolve(reference, "own")
    assert isinstance(found, ImageMissing)
    assert found.why.startswith("there is no such image")


def test_no_permission_and_no_network_are_not_a_no(monkeypatch: pytest.MonkeyPatch):
    refused = resolve("projects/other/global/images/secret", "own")
    monkeypatch.setenv(compute.ENDPOINT_VARIABLE, "http://127.0.0.1:9/")
    silent = resolve("trained", "own")
    assert isinstance(refused, Unknown) and "compute.images.get is missing" in refused.why
    assert isinstance(silent, Unknown) and "no answer" in silent.why
