# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false
# pyright: reportArgumentType=false
"""Runs inside the measured processes: notes their phases and ends them at a planned moment.

A plan is a folder, named by BENCH_PLAN, or, on a VM of the local cloud, the folder of the VM's
group below BENCH_PLANS, which only the group's first VM follows. It holds

    plan.json     {"phase", "nth", "offset_sec", "kind", "target"}; absent: only note
    marks.jsonl   one line for each phase that ended: phase, seconds
    steps         8 bytes: training steps done, in shared memory, so that a kill does not lose them
    pids/ROLE     the process of that role
    fired.json    written just before the blow: phase and steps
    ops.jsonl     where the plan says `operations`: each write of the store and each call of the
                  group, whether it was accepted, and when

A plan with `freeze` {"pattern", "after", "armed_by"} stops the whole VM at an operation instead:
before or after the first "verb path" that the pattern matches, once `armed_by` was seen.

The moment is `offset_sec` after the nth time that the phase was entered. Nothing of the program is
changed but that these functions are called through a wrapper: a trainer's `train_step` and
`evaluate`, the loop's writing of a snapshot, the supervisor's commit and its end of a run. The
peers' scripts say their phases themselves, with `phase`. Standard library only.
"""

import atexit
import contextlib
import functools
import importlib.abc
import importlib.machinery
import json
import mmap
import os
import re
import signal
import struct
import sys
import threading
import time

_STEPS = struct.Struct("<Q")
ASKED = "asked"
"""Folder below BENCH_PLANS with what the bench is to do to VMs."""


class Probe:
    """One measured process."""

    def __init__(self, folder, role):
        self.folder = folder
        self.fired = os.path.join(folder, "fired.json")
        self.role = role
        self.plan = _read_json(os.path.join(folder, "plan.json"))
        self.seen = {}
        self.step_sec = 0.0
        self.steps_made = 0
        self.lock = threading.Lock()
        self.freeze = dict(self.plan.get("freeze") or {}) if self.plan else {}
        self.began = time.monotonic()
        os.makedirs(os.path.join(folder, "pids"), exist_ok=True)
        with open(os.path.join(folder, "pids", role), "w") as file:
            file.write(str(os.getpid()))
        with open(os.path.join(folder, "steps"), "a+b") as file:
            if os.fstat(file.fileno()).st_size < _STEPS.size:
                file.truncate(_STEPS.size)
            self.shared = mmap.mmap(file.fileno(), _STEPS.size)

    def enter(self, phase):
        with self.lock:
            self.seen[phase] = nth = self.seen.get(phase, 0) + 1
        plan = self.plan
        if plan and plan.get("phase") == phase and plan["nth"] == nth:
            threading.Thread(target=self.inject, daemon=True).start()

    def leave(self, phase, seconds):
        line = json.dumps({"phase": phase, "seconds": seconds, "role": self.role}) + "\n"
        with open(os.path.join(self.folder, "marks.jsonl"), "a") as file:
            file.write(line)

    def inject(self):
        time.sleep(self.plan["offset_sec"])
        claimed = os.path.join(self.folder, "hit")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(claimed, os.O_CREAT | os.O_EXCL))
            self.shared.flush()
            steps = _STEPS.unpack_from(self.shared)[0]
            fired = {"phase": self.plan["phase"], "steps": steps}
            with open(os.path.join(self.folder, "fired.new"), "w") as file:
                json.dump(fired, file)
            os.rename(os.path.join(self.folder, "fired.new"), self.fired)
            self.blow()

    def blow(self):
        kind, target = self.plan["kind"], self.plan["target"]
        if kind == "SIGKILL" and target == "vm" or kind == "notice":
            _control("preempt" if kind == "notice" else "kill")
        elif target == "machine":
            number = getattr(signal, kind)
            known = [pid for role in ("supervisor", "trainer") if (pid := self.pid_of(role))]
            for pid in [pid for pid in known if pid != os.getpid()] + self.strangers(known):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            os.kill(os.getpid(), number)
        else:
            while (pid := self.pid_of(target)) is None:  # it is still to be started
                time.sleep(0.002)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, kind))

    def operate(self, verb, path, function, arguments, named):
        """One operation on what others see: frozen at if planned, and noted with its fate."""
        text = f"{verb} {path}"
        pattern = self.freeze.get("pattern")
        armed = self.freeze.get("armed_by")
        if armed and re.search(armed, text):
            self.freeze["armed_by"] = ""
        due = bool(pattern) and not armed and re.search(pattern, text) is not None
        if due:
            self.freeze["pattern"] = ""
        if due and not self.freeze["after"]:
            self.stop_here(text)
        fate = "accepted"
        try:
            return function(*arguments, **named)
        except BaseException as error:
            fate = type(error).__name__
            raise
        finally:
            line = {"verb": verb, "path": path, "fate": fate, "at": time.monotonic()}
            with open(os.path.join(self.folder, "ops.jsonl"), "a") as file:
                file.write(json.dumps(line) + "\n")
            if due and self.freeze["after"]:
                self.stop_here(text)

    def stop_here(self, text):
        with open(os.path.join(self.folder, "fired.new"), "w") as file:
            json.dump({"operation": text}, file)
        os.rename(os.path.join(self.folder, "fired.new"), self.fired)
        _control("freeze")
        time.sleep(0.5)  # the signal is on its way; nothing more may be sent before it is here

    def pid_of(self, role):
        with (
            contextlib.suppress(OSError, ValueError),
            open(os.path.join(self.folder, "pids", role)) as file,
        ):
            return int(file.read())
        return None

    def strangers(self, known):
        """Processes of this plan that have not said yet that they live."""
        mark = f"BENCH_PLAN={self.folder}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (*known, os.getpid()):
                with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(int(name))
        return found

    def step(self, made_sec):
        with self.lock:
            self.steps_made += 1
            self.step_sec += made_sec
        _STEPS.pack_into(self.shared, 0, _STEPS.unpack_from(self.shared)[0] + 1)
        if self.steps_made == 1:
            self.leave("setup", time.monotonic() - self.began - made_sec)
            atexit.register(self.last_words)

    def last_words(self):
        self.leave("step", self.step_sec / max(1, self.steps_made))
        line = {"steps": self.steps_made, "role": self.role}
        with open(os.path.join(self.folder, "marks.jsonl"), "a") as file:
            file.write(json.dumps(line) + "\n")


probe = None


def begin():
    """Called at the start of every Python of a measured run."""
    global probe
    folder, role = _plan_folder(), _role()
    if folder is None or role is None:
        return
    probe = Probe(folder, role)
    sys.meta_path.insert(0, _Finder())
    if role == "trainer":
        probe.enter("setup")


@contextlib.contextmanager
def phase(name):
    """The phase that the body is; nothing if the process is not measured."""
    if probe is None:
        yield
        return
    begun = time.monotonic()
    probe.enter(name)
    yield
    made_sec = time.monotonic() - begun
    if name == "step":
        probe.step(made_sec)
    else:
        probe.leave(name, made_sec)


def _in_phase(name, function):
    @functools.wraps(function)
    def wrapper(*arguments, **named):
        with phase(name):
            return function(*arguments, **named)

    return wrapper


def _wrap(module):
    name = module.__name__
    if name == "outlast.loop.snapshot":
        _replace(module, "write", "snapshot")
    elif name == "outlast.bucket.commit":
        _replace(module.Committer, "commit", "upload")
        _replace(module.Committer, "finish", "final upload")
    elif name == "outlast.bucket.store.gcs" and _is_watched():
        for verb in ("put", "copy", "delete"):
            _watch(module.GcsStore, verb)
    elif name == "outlast.supervisor.group" and _is_watched():
        call = module.Group._call
        module.Group._call = lambda group, url, body: probe.operate(
            "call", url.rpartition("/")[2], call, (group, url, body), {}
        )
    elif name.startswith("outlast.trainers."):
        _replace(module, "train_step", "step")
        _replace(module, "evaluate", "evaluation")


def _is_watched():
    return bool(probe.plan and probe.plan.get("operations"))


def _watch(owner, verb):
    function = getattr(owner, verb, None)
    if function is not None:

        @functools.wraps(function)
        def wrapper(store, path, *arguments, **named):
            return probe.operate(verb, path, function, (store, path, *arguments), named)

        setattr(owner, verb, wrapper)


def _replace(owner, name, phase_name):
    if hasattr(owner, name):
        setattr(owner, name, _in_phase(phase_name, getattr(owner, name)))


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps a module's functions right after the module has been run."""

    def find_spec(self, fullname, path, target=None):
        if not fullname.startswith("outlast."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _wrap(module)

            spec.loader.exec_module = exec_module
        return spec


def _role():
    words = sys.orig_argv
    if "outlast.trainers" in words or any(
        "peers" in word and word.endswith(".py") for word in words
    ):
        return "trainer"
    return "supervisor" if "outlast.supervisor" in words else None


def _plan_folder():
    folder = os.environ.get("BENCH_PLAN")
    if folder or not os.environ.get("BENCH_PLANS"):
        return folder
    name = _vm_name()
    folder = os.path.join(os.environ["BENCH_PLANS"], name.rpartition("-")[0])
    if not os.path.isdir(folder):
        return None
    claim = os.path.join(folder, "first-vm")
    with contextlib.suppress(FileExistsError):
        handle = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(handle, name.encode())
        os.close(handle)
    with open(claim) as file:
        return folder if file.read() == name else None


def _control(verb):
    """Has the bench do it to this VM, and waits: no VM may ask the local cloud's control itself."""
    wish = os.path.join(os.environ["BENCH_PLANS"], ASKED, f"{_vm_name()}.{verb}")
    os.close(os.open(wish, os.O_CREAT | os.O_WRONLY))
    until = time.monotonic() + 60
    while os.path.exists(wish) and time.monotonic() < until:
        time.sleep(0.002)


def _vm_name():
    with open(os.environ["OUTLAST_ROOT"] + "/etc/hostname") as file:
        return file.read().strip()


def _read_json(path):
    with contextlib.suppress(OSError), open(path) as file:
        return json.load(file)
    return None
