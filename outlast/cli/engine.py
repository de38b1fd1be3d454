"""Runs the Pulumi engine: finds it, sets its environment, and operates one stack.

Every process that is started for a local cloud gets a scrubbed environment: its own PULUMI_HOME
and backend, the local cloud's endpoints, and nothing of the caller's credentials, projects,
backends or proxies. So a rehearsal cannot reach a real project, however the shell is set up.
"""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.base import folders
from outlast.base.folders import PACKAGE, PROJECT_FILE
from outlast.base.suggest import choices
from outlast.cli import names, parts
from outlast.cli.endpoint import check_local_cloud
from outlast.cli.errors import EngineError, NoEngine, NoPlugin, NoStack
from outlast.spec import sweeps

if TYPE_CHECKING:
    from pulumi import automation

PASSPHRASE = "rehearsal"
"""Of the local backend's stacks, Pulumi.dev.yaml's salt included: they hold no secret."""

LOCK_HOLDER = re.compile(r"created by \S+@(?P<host>\S+) \(pid (?P<pid>[0-9]+)\)")
"""How the engine names who holds a stack's lock."""

PLUGIN = "pulumi-resource-gcp"
"""Google's provider for the engine, which the stand-in of the local cloud replaces."""

_NO_STACK = re.compile(r"no stack named '([^']*)' found")
"""The engine's message about a stack that its backend does not know."""

TORN = ": EOF"
"""End of the engine's message about a backend file that was being written when it was killed."""

_PROBLEM = re.compile(r"^\s*error: \S+ resource '.*?': property .*? has a problem: (.*)$", re.M)
"""The form in which the engine reports a dynamic resource's check."""

_SCRUBBED_PREFIXES = (
    "PULUMI_",
    "GOOGLE_",
    "GCLOUD_",
    "CLOUDSDK_",
    "GCE_METADATA_",
    "GCP_",
    "STORAGE_EMULATOR_",
    "OUTLAST_",
    "PYTHON",
    "AWS_",
    "AZURE_",
)
_SCRUBBED = {"virtual_env", "no_proxy", "http_proxy", "https_proxy", "all_proxy", "ftp_proxy"}
_KEPT = {"OUTLAST_CACHE"}


@dataclass(frozen=True)
class Parts:
    """The paths of what `make setup` made."""

    engine: str
    """The `pulumi` executable."""
    hosts: str | None
    """Folder of the stand-in hosts for PATH; None if the official ones are found."""
    image: str
    """Root folder of the rehearsal's image: holds opt/outlast/venv."""
    wheels: str
    """Folder of the wheels that requirements/vm.txt names."""
    python: str
    """The virtual environment's interpreter."""


def find_parts() -> Parts:
    """Finds the engine, the image and the rest. Raises EngineError that says what to run if
    something is missing.
    """
    script = PACKAGE.parent / "tools" / "setup.py"
    try:
        if not script.exists():
            return Parts(**parts.installed())
        spec = importlib.util.spec_from_file_location("outlast_setup", script)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return Parts(**module.parts())
    except parts.SetupError as error:
        raise EngineError(str(error)) from None


def chosen_plugin(provider: str) -> Path | None:
    """The plugin that `--provider` asks for; None for the stand-in. Raises NoPlugin."""
    return find_plugin(os.environ.get("PATH", os.defpath)) if provider == "plugin" else None


def find_plugin(path: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Google's provider plugin: the first on `path`, otherwise the newest in the folders of the
    engine's plugins, which PULUMI_HOME and the user's home name. Raises NoPlugin.
    """
    on_path = shutil.which(PLUGIN, path=path)
    if on_path:
        return Path(on_path).absolute()
    homes = [Path(environ.get("HOME") or Path.home()) / ".pulumi"]
    if environ.get("PULUMI_HOME"):
        homes.insert(0, Path(environ["PULUMI_HOME"]))
    folders = dict.fromkeys(home.absolute() / "plugins" for home in homes)
    found = {
        version: folder / PLUGIN
        for plugins in reversed(folders)
        for folder in plugins.glob("resource-gcp-v*")
        if os.access(folder / PLUGIN, os.X_OK) and (version := _plugin_version(folder))
    }
    if not found:
        raise NoPlugin(
            f"--provider plugin: {PLUGIN} is neither on PATH nor in "
            f"{' or '.join(str(folder) for folder in folders)}; install it with pulumi plugin "
            f"install resource gcp {metadata.version('pulumi-gcp')}, or leave out --provider."
        )
    return found[max(found)]


def _plugin_version(folder: Path) -> parts.Version | None:
    """The version in the name of a plugin's folder; None if it was not installed completely."""
    if folder.with_name(f"{folder.name}.partial").exists():  # the engine's own mark
        return None
    try:
        return parts.parse_version(folder.name.removeprefix("resource-gcp-"))
    except ValueError:
        return None


def project() -> Path:
    """The folder of the user's project, whose program every stack runs. Raises EngineError if there
    is none.
    """
    try:
        return folders.project()
    except FileNotFoundError as error:
        raise EngineError(f"{error}.") from None


def settings_folder(stack: str) -> Path:
    """The folder of a stack's settings file: the project, or for a sweep's stack its work folder in
    `.outlast`, which may not exist. Raises EngineError as `project` does.
    """
    name = stack.rpartition("/")[2]
    sweep, dashes, _ = name.partition(sweeps.TRIAL)
    return project() / ".outlast" / "sweeps" / sweep / name if dashes else project()


def project_name() -> str:
    """The project's name, as the engine knows it. Raises EngineError if there is no project."""
    import yaml

    return str(yaml.safe_load((project() / PROJECT_FILE).read_text())["name"])


def scrubbed(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environ` without variables that could lead a process to a real project or another
    backend.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not (name.startswith(_SCRUBBED_PREFIXES) or name.lower() in _SCRUBBED)
    }


def backend_variables(home: Path) -> dict[str, str]:
    """Variables of a separate Pulumi backend under `home`."""
    backend = home / "backend"
    backend.mkdir(parents=True, exist_ok=True)
    return {
        "PULUMI_HOME": str(home / "home"),
        "PULUMI_BACKEND_URL": f"file://{backend}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }


def enter(variables: Mapping[str, str]) -> None:
    """Makes `variables`, over what is left of the environment once scrubbed, this process's own.

    The Automation API adds variables to os.environ but takes none away, hence not per command.
    """
    clean = {**scrubbed(), **variables}
    os.environ.clear()
    os.environ.update(clean)


def path_variable(parts: Parts, path: str, plugin: Path | None = None) -> str:
    """PATH with the engine, the stand-in hosts if they are needed, this Python, and the folder of
    Google's plugin if there is one first, each once.

    The engine takes a plugin on PATH whatever its version, and one from its own folder only if
    the version is the SDK's.
    """
    folders = [str(Path(parts.engine).parent), str(Path(parts.python).parent)]
    if parts.hosts:
        folders.insert(0, parts.hosts)
    if plugin:
        folders.insert(0, str(plugin.parent))
    others = [folder for folder in path.split(os.pathsep) if folder not in folders]
    return os.pathsep.join([*folders, *others])


class Stack:
    """One stack of the project's program, in a separate work folder.

    The folder holds the project's settings and the stack's, and a link to the project, so that the
    engine writes nothing into the project and several stacks run side by side. The engine runs in
    this process's environment: see `enter`.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any],
        *,
        folder: Path,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        """`config`: settings by full key, as in Pulumi.<stack>.yaml; `document`: what else that
        file has. A folder that is there is used again.
        """
        import yaml

        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        root = project()
        definition: dict[str, Any] = yaml.safe_load((root / PROJECT_FILE).read_text())
        definition["main"] = str(Path("project", definition.get("main") or "."))
        runtime = definition["runtime"]
        named: dict[str, Any] = {"name": runtime} if isinstance(runtime, str) else runtime
        options = {**(named.get("options") or {}), "virtualenv": str(Path(sys.prefix))}
        definition["runtime"] = {**named, "options": options}
        if not (folder / "project").is_symlink():
            (folder / "project").symlink_to(root, target_is_directory=True)
        (folder / PROJECT_FILE).write_text(yaml.safe_dump(definition, sort_keys=False))
        settings = {**(document or {}), "config": dict(config)}
        (folder / f"Pulumi.{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        self._folder = folder
        self._stack: automation.Stack | None = None

    def up(self, on_output: Callable[[str], Any] | None = None) -> dict[str, Any]:
        """Creates the stack where needed, brings it up, and returns its outputs."""
        return self._do(
            lambda stack: {
                key: output.value
                for key, output in stack.up(on_output=on_output, show_secrets=False).outputs.items()
            }
        )

    def bring_up(self, *, exists: bool) -> None:
        """The same without the outputs: to read them takes as long as three more commands.
        `exists`: whether the backend knows the stack."""
        from pulumi import automation

        commands = [["up", "--yes", "--skip-preview", "--stack", self.name]]
        if not exists:
            commands.insert(0, ["stack", "init", self.name, "--no-select"])
        try:
            for words in commands:
                _command(os.environ.get("PATH", os.defpath)).run(words, str(self._folder), {})
        except automation.CommandError as error:
            raise self._failure(error) from None

    def destroy(self, on_output: Callable[[str], Any] | None = None) -> None:
        """Destroys everything that the stack declares; its record in the backend stays."""
        self._do(lambda stack: stack.destroy(on_output=on_output))

    def remove(self) -> None:
        """Removes its record from the backend. Raises EngineError if something is left of it."""
        self._do(lambda stack: stack.workspace.remove_stack(self.name, preserve_config=True))
        self._stack = None

    def _do(self, action: "Callable[[automation.Stack], Any]") -> Any:
        from pulumi import automation

        try:
            if self._stack is None:
                workspace = automation.LocalWorkspace(
                    work_dir=str(self._folder),
                    pulumi_command=_command(os.environ.get("PATH", os.defpath)),
                )
                self._stack = automation.Stack.create_or_select(self.name, workspace)
            return action(self._stack)
        except automation.CommandError as error:
            raise self._failure(error) from None

    def _failure(self, error: "automation.CommandError") -> EngineError:
        why = _refusal(str(error)) or _reason(str(error)) or str(error).strip()
        return EngineError(f"stack {self.name}: {why}")


@functools.cache
def _command(path: str) -> "automation.PulumiCommand":
    """The `pulumi` on a PATH, asked for its version once."""
    from pulumi import automation

    return automation.PulumiCommand()


def _reason(text: str) -> str:
    """The lines of a failed command that give the reason; empty if there are none."""
    if text.lstrip().startswith("{"):
        text = _diagnosed(text) or text
    lines = [line.strip() for line in text.splitlines()]
    errors = [
        line.removeprefix("error:").lstrip()
        for line in lines
        if line.startswith(("error:", "Error:")) or "Error:" in line or LOCK_HOLDER.search(line)
        if not line.endswith("Traceback (most recent call last):")
    ]
    reported = "; ".join(dict.fromkeys(errors))
    if reported.endswith(TORN):
        reported += "; a killed command left an empty file in the backend: run outlast recover"
    return reported


def _refusal(text: str) -> str:
    """The sentences with which the program's resources refuse their inputs; empty for other
    text.
    """
    found = _PROBLEM.findall(_diagnosed(text) or text)
    return "; ".join(dict.fromkeys(sentence.strip() for sentence in found))


def _diagnosed(text: str) -> str:
    """The errors in the output of a command with `--json`; empty for other text."""
    import json

    try:
        reported = json.loads(text).get("diagnostics") or ()
        return "".join(one["message"] for one in reported if one["severity"] == "error")
    except (ValueError, AttributeError, KeyError, TypeError):
        return ""


def ensure_stack(name: str, env: Mapping[str, str]) -> None:
    """Adds a stack of the checkout's program to the environment's backend.

    A new stack becomes the selected one.
    """
    import json

    listed = json.loads(run_engine(["stack", "ls", "--json"], env=env))
    if name not in [stack["name"] for stack in listed]:
        run_engine(["stack", "init", name], env=env)


def foreign(environ: Mapping[str, str], variables: Mapping[str, str]) -> set[str]:
    """Variables in `environ` that could lead away from the local cloud and that nothing
    replaces.
    """
    kept = scrubbed(environ)
    return {name for name in environ if name not in kept and name not in variables}


def _pulumi(env: Mapping[str, str]) -> str:
    found = shutil.which("pulumi", path=env.get("PATH"))
    if found is None:
        raise NoEngine(
            "pulumi: is not on PATH; take over the local cloud's shell with "
            'eval "$(outlast cloud start)", or install Pulumi for a stack of your own.'
        )
    return found


STDERR_FILENO = 2


def show_engine(args: list[str], *, env: Mapping[str, str], aside: bool = False) -> None:
    """Runs `pulumi ARGS` on this terminal; with `aside`, all of its output goes to stderr.

    Raises EngineError if it ends with an error, which it has printed, and CloudError if the local
    cloud is stopped.
    """
    check_local_cloud(env)
    command = [_pulumi(env), *args, "--non-interactive"]
    with _interrupts_left_to_engine():
        stdout = STDERR_FILENO if aside else None
        done = subprocess.run(command, cwd=project(), env=dict(env), stdout=stdout)
    if done.returncode:
        raise EngineError(f"pulumi {args[0]}: ended with an error, see above.")


def run_engine(args: list[str], *, env: Mapping[str, str], cwd: Path | None = None) -> str:
    """Runs `pulumi ARGS` and returns its stdout. Raises as `show_engine` does."""
    check_local_cloud(env)
    command = [_pulumi(env), *args, "--non-interactive"]
    with _interrupts_left_to_engine():
        done = subprocess.run(
            command,
            cwd=cwd or project(),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        said = done.stderr or done.stdout
        reported = _refusal(said) or _reason(said)
        if unknown := _NO_STACK.search(reported):
            raise NoStack(_no_stack(unknown[1]))
        raise EngineError(reported or f"pulumi {' '.join(args)}: {said.strip()}")
    return done.stdout


def _no_stack(name: str) -> str:
    """A sentence about a stack that the backend does not know, with those that the project has."""
    known = names.stacks()
    if name.rpartition("/")[2] in known:
        return (
            f"stack {name}: has settings, but this backend has no such stack; create it with "
            f"pulumi stack init {name}, or log in to the backend that has it (pulumi login)."
        )
    return f"stack {name}: this backend has no such stack; {choices(name, known)}."


@contextlib.contextmanager
def _interrupts_left_to_engine() -> Iterator[None]:
    """Ctrl-C reaches the engine too, which ends in order; this process waits for that instead of
    killing it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # A handler, and not SIG_IGN, which the engine would inherit.
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
