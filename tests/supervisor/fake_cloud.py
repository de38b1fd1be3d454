"""A metadata server and the REST calls of one group, on loopback, for the supervisor's tests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from outlast.spec import permissions

PROJECT = "test-project"
ZONE = "test-zone1-a"
PREFIX = "/computeMetadata/v1/"
CUT = 1
"""As a status: the answer is one that ends before its end."""


class FakeCloud:
    """State that tests set and calls that they look at."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.groups: dict[str, list[dict[str, str]]] = {}
        self.permissions: list[str] = list(permissions.LEAVE_GROUP)
        self.answers: dict[str, list[int]] = {}
        """Verb to statuses that its next calls get instead; the last one stays."""
        self.calls: list[str] = []
        self.page_size = 100
        self.closed = False
        self.changed = threading.Condition()
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                cloud._get(self)

            def do_POST(self) -> None:
                cloud._post(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.closed = True
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        with self.changed:
            self.changed.notify_all()

    def environment(self) -> dict[str, str]:
        return {
            "METADATA_BASE": f"http://{self.host}{PREFIX}",
            "GCE_METADATA_HOST": self.host,
            "OUTLAST_COMPUTE_ENDPOINT": f"http://{self.host}/compute/v1/",
            "OUTLAST_RESOURCE_MANAGER_ENDPOINT": f"http://{self.host}/cloudresourcemanager/v1/",
        }

    def set(self, path: str, value: str) -> None:
        with self.changed:
            self.values[path] = value
            self.changed.notify_all()

    def boot(self, group: str, instance_id: str, attributes: dict[str, str]) -> None:
        """The group's only instance is now this one, and the metadata server is its."""
        name = f"{group}-0001"
        self.groups[group] = [{"id": instance_id, "name": name}]
        with self.changed:
            self.values = {
                "instance/id": instance_id,
                "instance/name": name,
                "instance/zone": f"projects/1/zones/{ZONE}",
                "instance/machine-type": "projects/1/machineTypes/e2-small",
                "instance/image": "projects/p/global/images/image-1",
                "instance/preempted": "FALSE",
                "instance/maintenance-event": "NONE",
                "project/project-id": PROJECT,
                "instance/service-accounts/default/token": json.dumps(
                    {"access_token": "token-1", "expires_in": 3600, "token_type": "Bearer"}
                ),
                "instance/attributes/created-by": (
                    f"projects/1/zones/{ZONE}/instanceGroupManagers/{group}"
                ),
                **{f"instance/attributes/{key}": value for key, value in attributes.items()},
            }
            self.changed.notify_all()

    # -- requests -----------------------------------------------------------------------------

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if request.headers.get("Metadata-Flavor") != "Google":
            return _reply(request, 403, "Metadata-Flavor is missing")
        status = self._planned("metadata")
        if status is not None:
            return _reply(request, status, "planned")
        path = url.path.removeprefix(PREFIX)
        if query.get("recursive") == "true":
            found = {
                key.removeprefix(path): value
                for key, value in self.values.items()
                if key.startswith(path)
            }
            return _reply(request, 200, json.dumps(found))
        with self.changed:
            if query.get("wait_for_change") == "true":
                self.changed.wait_for(
                    lambda: (
                        self.closed or str(hash(self.values.get(path))) != query.get("last_etag")
                    ),
                    timeout=float(query.get("timeout_sec", "60")),
                )
            value = self.values.get(path)
        if value is None:
            return _reply(request, 404, "not found")
        return _reply(request, 200, value, etag=str(hash(value)))

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])) or b"{}")
        verb = url.path.replace(":", "/").rpartition("/")[2]
        self.calls.append(verb)
        status = self._planned(verb)
        if status is None and request.headers.get("Authorization") != "Bearer token-1":
            status = 401
        if status is not None:
            text = json.dumps({"error": {"code": status, "message": f"{verb} planned"}})
            return _reply(request, status, text)
        if verb == "testIamPermissions":
            granted = [name for name in body["permissions"] if name in self.permissions]
            return _reply(request, 200, json.dumps({"permissions": granted} if granted else {}))
        parts = url.path.split("/")
        place, group = "/".join(parts[5:7]), parts[8]
        made_by = self.values["instance/attributes/created-by"]
        assert parts[3:5] == ["projects", PROJECT] and f"/{place}/" in made_by, url.path
        if group not in self.groups:
            return _reply(request, 404, json.dumps({"error": {"message": "no such group"}}))
        members = self.groups[group]
        if verb == "listManagedInstances":
            start = int(parse_qs(url.query).get("pageToken", ["0"])[0])
            answer: dict[str, Any] = {"managedInstances": members[start : start + self.page_size]}
            if start + self.page_size < len(members):
                answer["nextPageToken"] = str(start + self.page_size)
            return _reply(request, 200, json.dumps(answer))
        if verb == "deleteInstances":
            names = [path.rpartition("/")[2] for path in body["instances"]]
            self.groups[group] = [entry for entry in members if entry["name"] not in names]
        elif verb == "resize":
            assert url.query == "size=0"
            self.groups[group] = []
        else:
            return _reply(request, 501, verb)
        return _reply(request, 200, json.dumps({"kind": "compute#operation", "status": "DONE"}))

    def _planned(self, verb: str) -> int | None:
        planned = self.answers.get(verb)
        if not planned:
            return None
        status = planned.pop(0) if len(planned) > 1 else planned[0]
        return status or None


def _reply(
    request: BaseHTTPRequestHandler, status: int, text: str, etag: str | None = None
) -> None:
    body = text.encode()
    cut = status == CUT
    try:
        request.send_response(200 if cut else status)
        request.send_header("Metadata-Flavor", "Google")
        request.send_header("Content-Length", str(len(body) + cut))
        request.close_connection = cut
        if etag is not None:
            request.send_header("ETag", etag)
        request.end_headers()
        request.wfile.write(body)
    except OSError:
        pass  # the guest was killed while it waited


@contextmanager
def fake_cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    """A cloud that this process's own clients find, too."""
    cloud = FakeCloud()
    for key, value in cloud.environment().items():
        monkeypatch.setenv(key, value)
    try:
        yield cloud
    finally:
        cloud.close()
