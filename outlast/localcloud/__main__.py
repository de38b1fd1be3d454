"""`python -m outlast.localcloud serve …` runs the local cloud until a signal stops it; `check
FILE` reads a scenario file and prints it as JSON.

Exit codes: 0 stopped, or the file is right; 64 bad flags, a bad scenario, port or state folder in
use; 1 the cloud could not continue.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from outlast.localcloud.base.errors import USAGE_EXIT, RehearsalError, UsageError
from outlast.localcloud.cloud import Options
from outlast.localcloud.scenarios.scenario import read
from outlast.localcloud.server import serve
from outlast.localcloud.vm.qemu_guest import GuestImage


class _Parser(argparse.ArgumentParser):
    """argparse with this project's exit code for bad usage."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE_EXIT, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser(prog="python -m outlast.localcloud", description="The local cloud.")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    command = commands.add_parser("serve", help="serve the local cloud on 127.0.0.1")
    command.add_argument("--state", type=Path, required=True, help="folder of everything it keeps")
    command.add_argument("--port", type=int, default=0, help="0 (the default): any free port")
    command.add_argument("--project", default=Options.project, help="its one project")
    command.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="PROJECT/FAMILY=FOLDER",
        help="an image family and the folder that its VMs' disks begin with; repeatable",
    )
    command.add_argument(
        "--guest-env",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="added to the environment of every VM; repeatable",
    )
    command.add_argument(
        "--notice-sec", type=float, default=Options.notice_sec, help="from notice to SIGTERM"
    )
    command.add_argument(
        "--grace-sec", type=float, default=Options.grace_sec, help="from SIGTERM to SIGKILL"
    )
    command.add_argument("--scenario", type=Path, metavar="FILE", help="what goes wrong, and when")
    command.add_argument(
        "--no-guests", action="store_true", help="VMs without processes, for measurements"
    )
    command.add_argument(
        "--guest",
        choices=("process", "vm"),
        default=Options.guest,
        help="what a VM is: a process tree, or a QEMU machine from the guest images of --image",
    )
    command.add_argument(
        "--no-provider", action="store_true", help="do not start the engine's provider adapter"
    )
    command.add_argument(
        "--parent-pid", type=int, help="stop when this process has ended, however it ended"
    )
    command = commands.add_parser("check", help="check a scenario file and print it as JSON")
    command.add_argument("file", type=Path, metavar="FILE")
    return top


def options_of(args: argparse.Namespace) -> Options:
    """Checks and returns the options; raises UsageError that names the flag."""
    for flag, seconds in (("--notice-sec", args.notice_sec), ("--grace-sec", args.grace_sec)):
        if seconds < 0:
            raise UsageError(f"{flag} {seconds}: must not be negative")
    images = {
        family: Path(folder).resolve()
        for family, folder in _pairs("--image", args.image, "PROJECT/FAMILY=FOLDER").items()
    }
    for family, folder in images.items():
        if family.count("/") != 1:
            raise UsageError(f"--image {family}: must be PROJECT/FAMILY=FOLDER")
        if not folder.is_dir():
            raise UsageError(f"--image {family}={folder}: the folder must exist")
    if args.guest == "vm":
        _check_guest_images(images)
    return Options(
        state=_without_links(args.state),
        port=args.port,
        project=args.project,
        images=images,
        guest_env=_pairs("--guest-env", args.guest_env, "KEY=VALUE"),
        notice_sec=args.notice_sec,
        grace_sec=args.grace_sec,
        guests=not args.no_guests,
        guest=args.guest,
        provider=not args.no_provider,
        parent_pid=args.parent_pid,
    )


def _check_guest_images(images: Mapping[str, Path]) -> None:
    if not images:
        raise UsageError("--guest vm: needs an --image, a folder with a guest image")
    for family, folder in images.items():
        try:
            GuestImage.read(folder)
        except OSError as error:
            raise UsageError(f"--image {family}: {error}; see make guest-image") from None


def _without_links(folder: Path) -> Path:
    """The absolute path. Links above the folder are resolved, but a link at the folder itself is
    kept, so that it is noticed."""
    whole = Path(os.path.abspath(folder))
    return whole.parent.resolve() / whole.name


def _pairs(flag: str, given: list[str], form: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not key or not separator or not value:
            raise UsageError(f"{flag} {text!r}: must be {form}")
        pairs[key] = value
    return pairs


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        if args.command == "check":
            print(json.dumps(read(args.file).document()))
        else:
            options = options_of(args)
            serve(options, read(args.scenario) if args.scenario else None)
    except UsageError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return USAGE_EXIT
    except RehearsalError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
