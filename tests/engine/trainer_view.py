"""A command that prints what its user sees of the VM, tries what it must not be able to do, and
trains: `id`, files and metadata, line by line, to LOG_DIR/view.txt and to its output.

    python3 trainer_view.py STEPS NEEDLE_IN_HEX
"""

import base64
import hashlib
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

ROOT = os.environ.get("OUTLAST_ROOT", "")
BASE = os.environ.get("METADATA_BASE", "http://169.254.169.254/computeMetadata/v1")
SECRETS = os.environ.get(
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "https://secretmanager.googleapis.com/"
)


def supervisor() -> int:
    """The process that started us all, by its words: they may be read by every user."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"outlast.supervisor\0vm" in words and pid_is_above(int(entry.name)):
                return int(entry.name)
    raise SystemExit("no supervisor above this process")


def pid_is_above(pid: int) -> bool:
    """Whether a process is our parent, or a parent of it."""
    now = os.getpid()
    while now > 1:
        stat = pathlib.Path(f"/proc/{now}/stat").read_bytes().rpartition(b")")[2].split()
        now = int(stat[1])
        if now == pid:
            return True
    return False


def get(url: str) -> str:
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=5) as answer:
        return answer.read().decode()


def readable(needles: list[bytes]) -> list[str]:
    """The files of the VM that this user can read and that hold one of the needles."""
    found = []
    for folder in ("var", "run", "tmp", "root", "opt", "etc", "dev/shm"):
        for path in pathlib.Path(f"{ROOT}/{folder}/").rglob("*"):
            try:
                if path.is_file() and any(one in path.read_bytes() for one in needles):
                    found.append(str(path))
            except OSError:
                continue
    return found


def write(path: str) -> None:
    """Creates a file, or opens an existing one for writing, without changing its content."""
    pathlib.Path(path).open("ab").close()


def tries():
    """(what is tried, the try); each must be refused."""
    process = pathlib.Path(f"/proc/{supervisor()}")
    (bundle,) = pathlib.Path(f"{ROOT}/var/lib/outlast/bundle").iterdir()
    yield "read the supervisor's environment", (process / "environ").read_bytes
    yield "read the supervisor's memory", (process / "mem").open
    yield "see the supervisor's open files", lambda: os.listdir(process / "fd")
    yield "signal the supervisor", lambda: os.kill(int(process.name), 0)
    yield "read the boot's token", pathlib.Path(f"{ROOT}/run/outlast/authorization").read_bytes
    token = f"{BASE}/instance/service-accounts/default/token"
    yield "get a token from the metadata server", lambda: get(token)
    yield "read the metadata server", lambda: get(f"{BASE}/instance/id")
    yield "write into the bundle", lambda: write(f"{bundle}/outlast/planted.py")
    yield "change the bundle", lambda: write(f"{bundle}/outlast/__init__.py")
    for folder in ("", "/etc", "/var/lib/outlast", "/var/log/outlast", "/run/outlast", "/root"):
        path = f"{ROOT}{folder}/planted"
        yield f"write into {folder or '/'}", lambda path=path: write(path)
    yield "list root's home", lambda: os.listdir(f"{ROOT}/root")
    yield "change the list of users", lambda: write("/etc/passwd")
    yield "become root", lambda: os.setuid(0)
    yield "take another group", lambda: os.setgroups([0])


def view(needle: bytes) -> list[str]:
    me = subprocess.run(["id"], capture_output=True, text=True).stdout.strip()
    lines = [f"id: {me}"]
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(("NoNewPrivs", "CapEff", "Groups")):
            lines.append(" ".join(line.split()))
    lines += [f"{name}={os.environ[name]}" for name in ("USER", "LOGNAME", "HOME")]
    for name in (".", os.environ["HOME"], os.environ["TMPDIR"], os.environ["LOG_DIR"]):
        path = pathlib.Path(name, "mine")
        path.write_text("mine")
        path.unlink()
        lines.append(f"can write: {name}")
    for what, attempt in tries():
        try:
            attempt()
        except Exception as error:
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            lines.append(f"refused: {what}: {why}")
        else:
            lines.append(f"ALLOWED: {what}")
    held = readable([needle, base64.b64encode(needle), b"Bearer " + b"vm-token-"])
    lines.append(f"readable files that hold the git secret or a token: {held or 'none'}")
    return [line.replace(ROOT, "") if ROOT else line for line in lines]


def train(steps: int) -> None:
    """A chain of digests, saved every few steps."""
    saved = pathlib.Path(os.environ["CHECKPOINT_DIR"], "state")
    done, digest = 0, ""
    if saved.exists():
        number, digest = saved.read_text().split()
        done = int(number)
        saved.write_text(saved.read_text())  # what is restored may be written over
    print(f"begins at step {done} in attempt {os.environ['ATTEMPT']}", flush=True)
    while done < steps:
        done += 1
        digest = hashlib.sha256(f"{done} {digest}".encode()).hexdigest()
        time.sleep(0.05)
        if done % 10 == 0:
            part = saved.with_name("state.tmp")
            part.write_text(f"{done} {digest}")
            part.rename(saved)
            subprocess.run(["outlast", "mark"], check=True)
    pathlib.Path(os.environ["RESULT_DIR"], "model").write_text(digest)


if __name__ == "__main__":
    text = "\n".join(view(bytes.fromhex(sys.argv[2]))) + "\n"
    print(text, flush=True)
    pathlib.Path(os.environ["LOG_DIR"], "view.txt").write_text(text)
    train(int(sys.argv[1]))
