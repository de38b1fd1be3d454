"""A bake in a local cloud: its process, and what it is given: an interpreter whose virtual
environments are made in a moment, an https host, a wheel."""

import hashlib
import ipaddress
import json
import os
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from outlast.cloud import compute, credentials
from outlast.localcloud.vm.disks import SYSTEM_PATH
from outlast.localcloud.vm.process_guest import SHIMS

REPO = Path(__file__).parents[1]
BAKER = "image-baker@outlast-rehearsal.iam.gserviceaccount.com"
"""The account of builders."""
PYTHON = """#!/bin/bash
# Lends an environment the pip of its interpreter, rather than installs one there.
if [[ "$1 $2" == "-m venv" ]]; then
  set -- -m venv --without-pip --system-site-packages "$3"
fi
exec {python} "$@"
"""


BAKE = """
import json, os, signal, sys
from pathlib import Path
from outlast.base.log import log_to
from outlast.cloud import bake, builder, recipe

given, root, stop_at, order = json.loads(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]

def show(sentence):
    print(sentence, flush=True)
    if stop_at and stop_at in sentence:
        os.kill(os.getpid(), signal.SIGKILL)

log_to(show)

checked = recipe.check(given, base="debian-cloud/debian-13", project="outlast-rehearsal",
                       zone="europe-west4-a")
recipe.PACKAGE = root
labels = {"managed-by": "outlast", "project": "outlast", "stack": "dev"}
order = builder.Order(labels, service_account=BAKER, **json.loads(order))
baked = recipe.read(checked, root, bundle_sha256=order.bundle_sha256)
try:
    print("link", bake.bake(baked, order))
except bake.BakeError as error:
    print("error", error)
    sys.exit(1)
"""


def begin_bake(
    url: str, root: Path, recipe: dict[str, Any], stop_at: str = "", **order: str
) -> "subprocess.Popen[str]":
    """Bakes a recipe with the files of `root` in a process, which kills itself when it says
    `stop_at`. `order` is more of what a builder gets."""
    return subprocess.Popen(
        [sys.executable, "-c", BAKE.replace("BAKER", repr(BAKER))]
        + [json.dumps(recipe), str(root), stop_at, json.dumps(order)],
        cwd=REPO,
        env={
            **{key: text for key, text in os.environ.items() if not key.startswith("GOOGLE_")},
            compute.ENDPOINT_VARIABLE: f"{url}/compute/beta/",
            credentials.TOKEN_VARIABLE: "local",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish_bake(baking: "subprocess.Popen[str]", longest_sec: float) -> tuple[int, str]:
    """The exit code of a bake, and what it said."""
    try:
        said, wrong = baking.communicate(timeout=longest_sec)
    finally:
        baking.kill()
    assert not wrong, wrong
    return baking.returncode, said


def quick_python(folder: Path) -> dict[str, str]:
    """Makes the interpreter; what VMs need in their environment to find it."""
    folder.mkdir()
    command = folder / "python3"
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info[1]}")
    command.write_text(PYTHON.format(python=base))
    command.chmod(0o755)
    return {"PATH": os.pathsep.join((str(SHIMS), str(folder), SYSTEM_PATH))}


def make_wheel(folder: Path, name: str) -> str:
    """Makes a wheel of one module that says its own name; the line of a lock file for it."""
    folder.mkdir()
    dist = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    files = {
        f"{name}.py": f"NAME = {name!r}\n",
        f"{dist}/METADATA": metadata,
        f"{dist}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{dist}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{dist}/RECORD"))
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@contextmanager
def https_host(folder: Path, authority: Path) -> Iterator[str]:
    """Serves a folder; writes who vouches for the host into the file `authority`."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.write_bytes(_certificate())
    context.load_cert_chain(authority)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _certificate() -> bytes:
    """A key and a certificate of it for 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return secret + made.public_bytes(serialization.Encoding.PEM)
