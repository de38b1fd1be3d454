"""The metadata server: one for each VM, on its own loopback port.

A tree of values with the paths of the real one. Readers may wait for a change (`wait_for_change`,
`last_etag`, `timeout_sec`). Every server has its own threads, so that a guest gets answers whatever
the rest of the cloud does."""

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.http.admission import check_no_page, check_target, hosts
from outlast.localcloud.http.peers import far_end

Value = str | int | list[str]

PREFIX = "/computeMetadata/v1/"
FOLDERS = ("instance/attributes/", "project/attributes/")
"""Folders that exist without a value in them too. The guest agent's scripts wait for them: Debian's
repeats its question for 90 s when a machine stops."""
GUEST_ATTRIBUTES = "instance/guest-attributes/"
GUEST_ATTRIBUTE_KEY = re.compile(r"[A-Za-z0-9_.-]{1,128}/[A-Za-z0-9_.-]{1,128}")
MAX_GUEST_ATTRIBUTE_BYTES = 32768
MAX_BODY_BYTES = 1 << 20
READ_TIMEOUT_SEC = 600.0
TOKEN_SEC = 3599
NAMES = ("127.0.0.1", "localhost")
ALIASES = ("metadata.google.internal", "metadata.google.internal.", "metadata", "169.254.169.254")
"""Its names on Google's VMs; a client that sends one of them may leave out the port."""
LONGEST_WAIT_SEC = 3600.0
POLL_SEC = 0.05


class Answer(NamedTuple):
    """The answer for a reader."""

    status: int
    body: str
    content_type: str = "application/text"
    etag: str = ""


class Tree:
    """The values of one VM by path (`instance/id`). Safe to share between threads."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values: dict[str, Value] = dict(values)
        self._changed = threading.Condition()
        self._closed = False

    def set(self, path: str, value: Value) -> None:
        """Sets the value of a path, and wakes readers that wait."""
        with self._changed:
            self._values[path] = value
            self._changed.notify_all()

    def delete(self, path: str) -> bool:
        """Deletes a path; returns whether it existed."""
        with self._changed:
            found = self._values.pop(path, None) is not None
            self._changed.notify_all()
        return found

    def replace(self, folder: str, values: Mapping[str, Value]) -> None:
        """Replaces all values of a folder (`instance/attributes/`)."""
        with self._changed:
            kept = {k: v for k, v in self._values.items() if not k.startswith(folder)}
            self._values = {**kept, **{folder + key: value for key, value in values.items()}}
            self._changed.notify_all()

    def value(self, path: str) -> Value | None:
        """The value of a path; None if it does not exist."""
        with self._changed:
            return self._values.get(path)

    def items(self, folder: str) -> dict[str, Value]:
        """The values below a folder, by their relative path."""
        with self._changed:
            return {k[len(folder) :]: v for k, v in self._values.items() if k.startswith(folder)}

    def read(self, path: str, *, recursive: bool = False, alt: str | None = None) -> Answer:
        """The answer to a plain GET of a path without its prefix; folders end with a slash."""
        with self._changed:
            return self._read(path, recursive, alt)

    def wait(
        self,
        path: str,
        *,
        recursive: bool = False,
        alt: str | None = None,
        last_etag: str | None = None,
        timeout_sec: float = LONGEST_WAIT_SEC,
    ) -> Answer:
        """Like `read`, but waits until the answer differs from the one with the etag.

        Without an etag, it waits for a change from now on. After the timeout it returns the current
        answer."""
        deadline = time.monotonic() + timeout_sec
        with self._changed:
            answer = self._read(path, recursive, alt)
            known = answer.etag if last_etag is None else last_etag
            while answer.etag == known and answer.status == 200 and not self._closed:
                left_sec = deadline - time.monotonic()
                if left_sec <= 0:
                    break
                self._changed.wait(left_sec)
                answer = self._read(path, recursive, alt)
            if self._closed:
                return Answer(503, "The metadata server is going away.\n")
            return answer

    def open(self) -> None:
        """Lets readers wait, also after a `close`."""
        with self._changed:
            self._closed = False

    def close(self) -> None:
        """Ends all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _read(self, path: str, recursive: bool, alt: str | None) -> Answer:
        value = self._values.get(path)
        if value is not None:
            as_json = alt == "json"
            text = json.dumps(value) if as_json else _text(value)
            return _answer(text, as_json)
        folder = path if path.endswith("/") or not path else path + "/"
        below = {k[len(folder) :]: v for k, v in self._values.items() if k.startswith(folder)}
        empty = [each[len(folder) :] for each in FOLDERS if each.startswith(folder)]
        if not below and not empty:
            return Answer(404, f"{path or '/'} was not found.\n")
        if path and not path.endswith("/") and not recursive:
            return Answer(301, "", etag=PREFIX + folder)
        if not recursive:
            names = dict.fromkeys(
                name + ("/" if slash else "")
                for name, slash, _ in (
                    key.partition("/") for key in sorted({*below, *empty} - {""})
                )
            )
            if alt == "json":
                return _answer(json.dumps(list(names)), True)
            return _answer("".join(f"{name}\n" for name in names), False)
        if alt == "text":
            lines = (f"{key} {_text(value)}\n" for key, value in sorted(below.items()))
            return _answer("".join(lines), False)
        nested = _nested(below, folder)
        for each in empty:
            at = nested
            for name in each.split("/")[:-1]:
                at = at.setdefault(name, {})
        return _answer(json.dumps(nested), True)


def _answer(text: str, as_json: bool) -> Answer:
    etag = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Answer(200, text, "application/json" if as_json else "application/text", etag)


def _text(value: Value) -> str:
    return "\n".join(value) + "\n" if isinstance(value, list) else str(value)


def _nested(values: Mapping[str, Value], folder: str) -> Any:
    """Values in the form of the recursive JSON: camelCase names, numbered folders as lists."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        at = nested
        *parents, last = key.split("/")
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return _renamed(nested, folder)


def _renamed(node: Any, folder: str) -> Any:
    if not isinstance(node, dict):
        return node
    own_names = (
        folder.endswith(("/attributes/", "/service-accounts/")) or GUEST_ATTRIBUTES in folder
    )
    if node and not own_names and all(key.isdigit() for key in node):
        return [_renamed(node[key], f"{folder}{key}/") for key in sorted(node, key=int)]
    return {
        (key if own_names else _camel(key)): _renamed(value, f"{folder}{key}/")
        for key, value in node.items()
    }


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)


class Trouble:
    """Faults of a metadata server before it answers normally."""

    def __init__(self, late_sec: float = 0.0, status: int = 0, count: int = 0) -> None:
        """Closes connections without an answer for the first `late_sec`; then answers `count`
        requests with `status`."""
        self._late_sec = late_sec
        self._until = 0.0
        self._status = status
        self._left = count if status else 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Starts the delay; called at boot."""
        self._until = time.monotonic() + self._late_sec

    def answer(self) -> Answer | None:
        """The faulty answer for a request; None if it gets its normal one, status 0 if it gets
        none."""
        if time.monotonic() < self._until:
            return Answer(0, "")
        with self._lock:
            if not self._left:
                return None
            self._left -= 1
        return Answer(self._status, "The metadata server is not ready.\n", "text/plain")


class Server:
    """A metadata server on a free loopback port."""

    def __init__(
        self,
        tree: Tree,
        token: Callable[[], str],
        admits: Callable[[int], bool] = lambda _inode: True,
        trouble: Trouble | None = None,
        cut_off: Callable[[], Collection[int]] = frozenset,
        asked: Callable[[str], None] = lambda _path: None,
    ) -> None:
        """`token` returns the access token of the VM's service account. `admits` returns whether a
        process of the VM has the socket of an inode open. `cut_off` returns the ids of users that
        the VM itself blocks. `asked` gets the path of each value that is read."""
        self._trouble = trouble or Trouble()
        self._trouble.begin()
        self.tree = tree
        tree.open()
        self._token = token
        self._admits = admits
        self._cut_off = cut_off
        self._asked = asked
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self._hosts = hosts(NAMES, self.port) | hosts(ALIASES, 80) | hosts(ALIASES, self.port)
        self._thread = threading.Thread(
            target=self._http.serve_forever,
            kwargs={"poll_interval": POLL_SEC},
            name=f"metadata-{self.port}",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Frees the port without waiting for readers."""
        self.tree.close()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> Answer:
        """The answer to one request."""
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if url.path in ("", "/", "/computeMetadata", "/computeMetadata/"):
            return Answer(200, "computeMetadata/\n" if len(url.path) < 2 else "v1/\n")
        if headers.get("Metadata-Flavor") != "Google":
            return Answer(403, "Missing Metadata-Flavor:Google header.\n", "text/plain")
        if headers.get("X-Forwarded-For"):
            return Answer(403, "A forwarded request is refused.\n", "text/plain")
        if not (url.path + "/").startswith(PREFIX):
            return Answer(404, f"{url.path} was not found.\n")
        # Debian's guest agent asks for the root as `v1//`, which the real server takes.
        path = unquote(url.path[len(PREFIX) :]).lstrip("/")
        if method in ("PUT", "DELETE"):
            return self._write(method, path, body)
        if re.fullmatch(r"instance/service-accounts/[^/]+/token", path):
            account = path.split("/")[2]
            if self.tree.value(f"instance/service-accounts/{account}/email") is None:
                return Answer(404, f"{path} was not found.\n")
            token = {
                "access_token": self._token(),
                "expires_in": TOKEN_SEC,
                "token_type": "Bearer",
            }
            return Answer(200, json.dumps(token), "application/json")
        recursive = query.get("recursive", "").lower() == "true"
        alt = query.get("alt")
        self._asked(path)
        if query.get("wait_for_change", "").lower() != "true":
            return self.tree.read(path, recursive=recursive, alt=alt)
        try:
            timeout_sec = float(query.get("timeout_sec", LONGEST_WAIT_SEC))
        except ValueError:
            return Answer(400, f"timeout_sec {query['timeout_sec']!r}: must be a number.\n")
        return self.tree.wait(
            path,
            recursive=recursive,
            alt=alt,
            last_etag=query.get("last_etag"),
            timeout_sec=timeout_sec,
        )

    def _write(self, method: str, path: str, body: bytes) -> Answer:
        if not path.startswith(GUEST_ATTRIBUTES):
            return Answer(405, f"{method} is not allowed here.\n")
        enabled = self.tree.value("instance/attributes/enable-guest-attributes")
        if str(enabled).upper() != "TRUE":
            return Answer(403, "Guest attributes endpoint access is disabled.\n")
        if not GUEST_ATTRIBUTE_KEY.fullmatch(path[len(GUEST_ATTRIBUTES) :]):
            return Answer(400, f"{path}: must be instance/guest-attributes/NAMESPACE/KEY.\n")
        if method == "DELETE":
            return Answer(200, "") if self.tree.delete(path) else Answer(404, "")
        if len(body) > MAX_GUEST_ATTRIBUTE_BYTES:
            return Answer(413, f"The value is over {MAX_GUEST_ATTRIBUTE_BYTES} bytes.\n")
        self.tree.set(path, body.decode(errors="replace"))
        return Answer(200, "")

    def _is_cut_off(self, connection: socket.socket) -> bool:
        users = self._cut_off()
        far = far_end(connection) if users else None
        return far is not None and far.uid in users

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An answer's head and body are two writes; with Nagle's algorithm, a reader would wait
            # for its own ack.
            disable_nagle_algorithm = True
            timeout = READ_TIMEOUT_SEC
            admitted = False

            def do_GET(self) -> None:
                answer = server._trouble.answer() or self.answer()
                if not answer.status:
                    self.close_connection = True
                    return
                data = answer.body.encode()
                self.send_response(answer.status)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(data)))
                if answer.status == 301:
                    self.send_header("Location", answer.etag)
                elif answer.etag:
                    self.send_header("ETag", answer.etag)
                self.end_headers()
                self.wfile.write(data)

            def answer(self) -> Answer:
                length = self.headers.get("Content-Length") or "0"
                if not (length.isascii() and length.isdigit()) or int(length) > MAX_BODY_BYTES:
                    self.close_connection = True  # the next bytes could be a body
                    return Answer(400, f"Content-Length: must be at most {MAX_BODY_BYTES}.\n")
                body = self.rfile.read(int(length))
                if len(body) < int(length):
                    self.close_connection = True
                    return Answer(400, "The body is shorter than its Content-Length.\n")
                if not self.admitted:  # once for each connection
                    far = far_end(self.request)
                    self.admitted = far is not None and server._admits(far.inode)
                if not self.admitted:
                    self.close_connection = True
                    return Answer(403, "This metadata server answers its own VM's processes.\n")
                try:
                    check_target(self.path, self.headers.get_all("Host", []), server._hosts)
                    check_no_page(self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site"))
                except ApiError as error:
                    self.close_connection = True
                    return Answer(error.status, f"{error.message}\n", "text/plain")
                return server.answer(self.command, self.path, self.headers, body)

            do_PUT = do_GET
            do_DELETE = do_GET

            def do_POST(self) -> None:
                self.send_error(405)

            def handle(self) -> None:
                if server._is_cut_off(self.request):
                    return
                try:
                    super().handle()
                except (ConnectionError, TimeoutError):
                    self.close_connection = True  # the guest has disconnected

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing: a guest sends many requests a second."""

        return Handler


def vm_values(
    *,
    project: str,
    project_number: str,
    instance_id: str,
    name: str,
    zone: str,
    properties: Mapping[str, Any],
    service_account: str,
    image: str,
    address: str = "127.0.0.1",
) -> dict[str, Value]:
    """The values of a VM of these properties (an API InstanceProperties), without attributes."""
    scheduling = properties.get("scheduling") or {}
    spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible")
    machine_type = str(properties.get("machineType") or "").rpartition("/")[2]
    host = f"{name}.{zone}.c.{project}.internal"
    values: dict[str, Value] = {
        "project/project-id": project,
        "project/numeric-project-id": int(project_number),
        "instance/id": int(instance_id),
        "instance/name": name,
        "instance/hostname": host,
        "instance/description": properties.get("description") or "",
        "instance/zone": f"projects/{project_number}/zones/{zone}",
        "instance/machine-type": f"projects/{project_number}/machineTypes/{machine_type}",
        "instance/image": image,
        "instance/cpu-platform": "Local Cloud",
        "instance/preempted": "FALSE",
        "instance/maintenance-event": "NONE",
        "instance/tags": list((properties.get("tags") or {}).get("items") or []),
        "instance/scheduling/automatic-restart": _true(
            scheduling.get("automaticRestart", not spot)
        ),
        "instance/scheduling/on-host-maintenance": scheduling.get("onHostMaintenance")
        or ("TERMINATE" if spot else "MIGRATE"),
        "instance/scheduling/preemptible": _true(spot),
        "instance/disks/0/device-name": "persistent-disk-0",
        "instance/disks/0/index": 0,
        "instance/disks/0/mode": "READ_WRITE",
        "instance/disks/0/type": "PERSISTENT-BALANCED",
        "instance/network-interfaces/0/ip": address,
        "instance/network-interfaces/0/network": f"projects/{project_number}/networks/default",
        "instance/network-interfaces/0/mtu": 1460,
        "universe/universe-domain": "googleapis.com",
    }
    accounts = properties.get("serviceAccounts") or []
    if accounts:
        scopes = list(accounts[0].get("scopes") or [])
        for account in ("default", service_account):
            folder = f"instance/service-accounts/{account}"
            values[f"{folder}/email"] = service_account
            values[f"{folder}/scopes"] = scopes
            values[f"{folder}/aliases"] = ["default"]
    return values


def _true(value: Any) -> str:
    return "TRUE" if value else "FALSE"
