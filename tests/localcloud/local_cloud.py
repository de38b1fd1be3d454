"""A client of a local cloud, and its process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

PROJECT = "outlast-rehearsal"
START_SEC = 60.0
ANSWER_SEC = 60.0
"""Far above what either takes, so that a busy machine turns no test red."""


class LocalCloud:
    """A running cloud and a plain HTTP client of it."""

    def __init__(self, state: Path, *command: str) -> None:
        """`command` is what serves on the state folder; by default a cloud without VMs."""
        self.state = state
        without_vms = (str(Path(__file__).with_name("machines.py")), str(state))
        self._command = [sys.executable, *(command or without_vms)]
        self.http = requests.Session()
        self.http.trust_env = False
        try:
            self.start()
        except AssertionError:  # no later test is to be blamed for what is left
            self.process.kill()
            self.process.communicate()
            self.http.close()
            raise

    def start(self) -> None:
        """Starts the process on the state folder and waits until it is ready."""
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2]
        )
        deadline = time.monotonic() + START_SEC
        endpoint = self.state / "endpoint.json"
        while True:
            # The file of a killed cloud stays there until this one removes it.
            with contextlib.suppress(FileNotFoundError):
                document = json.loads(endpoint.read_text())
                if document["pid"] == self.process.pid:
                    break
            assert self.process.poll() is None, "the cloud ended while it was starting"
            assert time.monotonic() < deadline, "the cloud was not ready in time"
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{document['port']}"

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the process and returns its exit code."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(START_SEC)

    def endpoints(self) -> dict[str, str]:
        """The variables with which Outlast's own clients reach this cloud."""
        return {
            "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": f"{self.url}/compute/beta/",
            "GOOGLE_STORAGE_CUSTOM_ENDPOINT": f"{self.url}/storage/v1/",
            "GOOGLE_IAM_BETA_CUSTOM_ENDPOINT": f"{self.url}/iam/v1/",
            "GOOGLE_RESOURCE_MANAGER_CUSTOM_ENDPOINT": f"{self.url}/cloudresourcemanager/v1/",
        }

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """One request, as the owner unless `vm` is (vm name, email)."""
        vm = options.pop("vm", None)
        headers = dict(options.pop("headers", {}))
        if vm:
            headers["Authorization"] = f"Bearer vm-token-{vm[0]}:{vm[1]}"
        return self.http.request(
            method, self.url + path, headers=headers, timeout=ANSWER_SEC, **options
        )

    def put(self, bucket: str, name: str, data: bytes = b"x", **options: Any) -> requests.Response:
        """A media upload; query parameters in `params`."""
        params = {"uploadType": "media", "name": name, **options.pop("params", {})}
        path = f"/upload/storage/v1/b/{bucket}/o"
        return self.call("POST", path, data=data, params=params, **options)

    def object(self, method: str, bucket: str, name: str, **options: Any) -> requests.Response:
        """A request on one object."""
        path = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        return self.call(method, path, **options)

    def add_fault(self, when: str, do: dict[str, Any], **match: Any) -> str:
        """Adds a rule; returns its id."""
        answer = self.call("POST", "/_local/faults", json={"match": match, "when": when, "do": do})
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The event lines of a kind."""
        lines = (self.state / "events.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["kind"] == kind]


class FullCloud(LocalCloud):
    """The local cloud as people start it, but for the engine's provider."""

    def start(self) -> None:
        root = Path(__file__).parents[2]
        image = self.state.parent / "image"
        image.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "outlast.localcloud", "serve", "--state", str(self.state)),
                *("--no-provider", "--image", f"{PROJECT}/outlast={image}"),
                *("--notice-sec", "0.3", "--grace-sec", "1"),
            ],
            stdout=subprocess.PIPE,
            cwd=root,
        )
        said = self.process.stdout.readline() if self.process.stdout else b""
        assert said, "the cloud ended while it was starting"
        document = json.loads((self.state / "endpoint.json").read_text())
        self.url = f"http://127.0.0.1:{document['port']}"

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The JSON of a call that must succeed."""
        answer = self.call(method, path, json=body, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stop(self, *arguments: Any) -> int:
        code = super().stop(*arguments)
        if self.process.stdout:
            self.process.stdout.close()
        return code


def make_bucket(cloud: LocalCloud, **fields: Any) -> str:
    """A new bucket as components declare it; `fields` of its body override. Returns the name."""
    name = fields.pop("name", f"bucket-{uuid.uuid4().hex[:10]}")
    access = {"uniformBucketLevelAccess": {"enabled": True}}
    body = {"name": name, "location": "us-central1", "iamConfiguration": access, **fields}
    answer = cloud.call("POST", "/storage/v1/b", params={"project": PROJECT}, json=body)
    assert answer.status_code == 200, answer.text
    return name
