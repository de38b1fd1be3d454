"""The metadata server, the bucket and the group that the startup scripts meet in the bats tests.

Stateless: everything is read from and written to one folder, which a test prepares and inspects.

    metadata/PATH     value of a metadata key below computeMetadata/v1/
    objects/NAME      an object, its name percent-encoded
    guest/KEY         a guest attribute, outlast/KEY, as the VM has put it last
    absent            the status of an absent object; without it 404
    payer             the project that requests for objects must name; without it none
    members.json      managedInstances of the one group; without it the group does not exist
    faults            lines `METHOD PATTERN STATUS TIMES`: the answer instead, so many times
                      (-1: always); status 0 closes the connection without an answer
    calls             one line for each call that was answered, in order: `METHOD PATH STATUS`

Usage: cloud.py FOLDER PORT-FILE
"""

import http.server
import json
import os
import re
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

PAGE = 4
TOKEN = "token-of-the-vm"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path
    lock = threading.Lock()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.lock:
            status, content = self.fault() or self.route(body)
            with (self.folder / "calls").open("a") as calls:
                calls.write(f"{self.command} {self.path} {status}\n")
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def fault(self) -> tuple[int, bytes] | None:
        file = self.folder / "faults"
        rules = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        for rule in rules:
            method, pattern, status, times = rule
            if method == self.command and times != "0" and re.search(pattern, self.path):
                rule[3] = str(int(times) - 1)
                file.write_text("".join(" ".join(each) + "\n" for each in rules))
                return int(status), b'{"error": {"code": %d}}' % int(status)
        return None

    def route(self, body: bytes) -> tuple[int, bytes]:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path.startswith("/computeMetadata/v1/"):
            return self.metadata(url.path.removeprefix("/computeMetadata/v1/"), body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, b"{}"
        if match := re.fullmatch(r"/upload/storage/v1/b/bucket/o", url.path):
            return self.create(query, body)
        if re.fullmatch(r"/storage/v1/b/bucket/o", url.path):
            return 200, self.list(query)
        if match := re.fullmatch(r"/storage/v1/b/bucket/o/([^/]+)", url.path):
            payer = self.folder / "payer"
            if payer.exists() and query.get("userProject") != payer.read_text():
                return (
                    400,
                    b'{"error": {"message": "Bucket is a requester pays one"}}',
                )
            return self.read(unquote(match[1]), query)
        place = r"(?:zones/zone-a|regions/region)"
        group = rf"/compute/v1/projects/project/{place}/instanceGroupManagers/group/(.+)"
        if self.command == "POST" and (match := re.fullmatch(group, url.path)):
            return self.group(match[1], query, body)
        return 501, b"{}"

    def metadata(self, path: str, body: bytes) -> tuple[int, bytes]:
        file = self.folder / "metadata" / path
        if self.headers.get("Metadata-Flavor") != "Google":
            return 403, b""
        if self.command == "PUT":
            key = path.removeprefix("instance/guest-attributes/outlast/")
            (self.folder / "guest").mkdir(exist_ok=True)
            (self.folder / "guest" / key).write_bytes(body)
            return 200, b""
        if path == "instance/service-accounts/default/token":
            return 200, json.dumps({"access_token": TOKEN, "expires_in": 3599}).encode()
        return (200, file.read_bytes()) if file.is_file() else (404, b"<html>not found</html>")

    def file(self, name: str) -> Path:
        return self.folder / "objects" / quote(name, safe="")

    def create(self, query: dict[str, str], body: bytes) -> tuple[int, bytes]:
        assert query["uploadType"] == "media" and query["ifGenerationMatch"] == "0"
        file = self.file(query["name"])
        if file.exists():
            return 412, b"{}"
        file.write_bytes(body)
        return 200, json.dumps(describe(file)).encode()

    def read(self, name: str, query: dict[str, str]) -> tuple[int, bytes]:
        file = self.file(name)
        if not file.exists():
            status = self.folder / "absent"
            return int(status.read_text()) if status.exists() else 404, b"Not Found"
        if query.get("alt") == "media":
            return 200, file.read_bytes()
        return 200, json.dumps(describe(file), indent=1).encode()

    def list(self, query: dict[str, str]) -> bytes:
        """Pages of four, folders and objects together in order of name, as the real one."""
        prefix, delimiter = query["prefix"], query.get("delimiter", "\0")
        most = int(query.get("maxResults", PAGE))
        entries: dict[str, dict[str, str] | None] = {}
        for file in (self.folder / "objects").iterdir():
            name = unquote(file.name)
            if name.startswith(prefix):
                head, found, _ = name.removeprefix(prefix).partition(delimiter)
                entries[prefix + head + found] = None if found else describe(file)
        names = sorted(name for name in entries if name > query.get("pageToken", ""))
        page: dict[str, object] = {"kind": "storage#objects"}
        if found_prefixes := [name for name in names[:most] if entries[name] is None]:
            page["prefixes"] = found_prefixes
        if items := [entries[name] for name in names[:most] if entries[name] is not None]:
            page["items"] = items
        if len(names) > most:
            page["nextPageToken"] = names[most - 1]
        return json.dumps(page, indent=2).encode()

    def group(self, method: str, query: dict[str, str], body: bytes) -> tuple[int, bytes]:
        file = self.folder / "members.json"
        if not file.exists():
            return 404, b"{}"
        if method == "listManagedInstances":
            return 200, json.dumps({"managedInstances": json.loads(file.read_text())}).encode()
        if method == "deleteInstances":
            (self.folder / "deleted").write_text("\n".join(json.loads(body)["instances"]))
            return 200, json.dumps({"kind": "compute#operation", "status": "DONE"}).encode()
        if method == "resize" and query == {"size": "0"}:
            return 200, json.dumps({"kind": "compute#operation", "status": "RUNNING"}).encode()
        return 501, b"{}"


def describe(file: Path) -> dict[str, str]:
    """Keys in another order than a reader may hope for, and an object inside."""
    created = datetime.fromtimestamp(file.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "timeCreated": created,
        "metadata": {"name": 'not "this", {nor} that'},  # type: ignore[dict-item]
        "name": unquote(file.name),
        "size": str(file.stat().st_size),
    }


def main() -> None:
    Handler.folder = Path(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready = Path(sys.argv[2])
    ready.with_suffix(".tmp").write_text(str(server.server_port))
    os.replace(ready.with_suffix(".tmp"), ready)
    server.serve_forever()


if __name__ == "__main__":
    main()
