"""``python -m outlast.loop.command [--run-dir DIR] -- python train.py …``; also ``outlast train``.

Exit codes: 0 done, 64 bad usage or program not found, 75 interrupted (the same command resumes), 76
another process has taken over the run's folder, else the command's own.
"""

import argparse
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from outlast.base import exits
from outlast.base.console import fill_streams
from outlast.base.exits import State
from outlast.base.suggest import did_you_mean
from outlast.loop import data
from outlast.loop.command.command import Command
from outlast.loop.command.errors import (
    CommandError,
    CommandFailed,
    NoOutput,
    ResultTooLarge,
)
from outlast.loop.command.folders import check_checkpoint_dir
from outlast.loop.command.home import remove_home
from outlast.loop.command.runner import (
    Heard,
    Runner,
)
from outlast.loop.errors import DataError, DoesNotFit, LoopError, SupervisorLost, exit_code
from outlast.loop.local import (
    LocalSupervisor,
    check_apart,
    check_end,
    default_folder,
    run_name,
)
from outlast.loop.session import CONNECT_SEC, Session, connect
from outlast.loop.signals import Interrupts
from outlast.loop.words import say
from outlast.protocol import SOCKET_VARIABLE, Ended, parse_every
from outlast.spec import file_kinds as kinds
from outlast.spec.command_words import QUIET_SEC, RESULT_GB_MAX
from outlast.spec.identity import COMMAND

HELP_WIDTH = 78
LAST_WORDS_SEC = 10.0
"""Seconds for a supervisor to end after its command has ended."""


class Options(argparse.ArgumentParser):
    """A parser that answers a mistake with one sentence and the nearest option."""

    def parse_known(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the options; CommandError for an unknown one."""
        options, rest = self.parse_known_args(words)
        if not rest:
            return options
        known = [name for action in self._actions for name in action.option_strings]
        then = "write the command after --, as in outlast train -- python train.py"
        hint = did_you_mean(rest[0].partition("=")[0], known, then)
        raise CommandError(f"{' '.join(rest)}: is not an option of outlast train; {hint}")

    def error(self, message: str) -> NoReturn:
        raise CommandError(message.removeprefix("argument "))


def parser() -> Options:
    """The options before the command."""
    top = Options(
        prog="outlast train",
        usage="outlast train [options] -- COMMAND …",
        description=textwrap.fill(
            "Run any training command so that it resumes after it was killed: CHECKPOINT_DIR holds "
            "its last checkpoint at the start, and files that it writes there are kept.",
            HELP_WIDTH,
        )
        + "\n\n  outlast train -- python train.py",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_known_globs(),
    )
    top.add_argument(
        "--run-dir", type=_named, help="folder or gs:// path of the run; default runs/command-<run>"
    )
    top.add_argument(
        "--data",
        action="append",
        default=[],
        type=_named,
        help="data for {data} and DATA_DIR: a file or folder, local or gs://; may be repeated",
    )
    top.add_argument("--shell", action="store_true", help="COMMAND is one line for the shell")
    top.add_argument(
        "--checkpoint-every",
        type=_every,
        default="auto",
        help="least time between two checkpoints, such as 60s; default %(default)s",
    )
    top.add_argument(
        "--checkpoint-quiet-sec",
        type=_seconds,
        default=QUIET_SEC,
        help="seconds without a change after which the checkpoint folder is complete, unless the "
        "command says so; default %(default)s",
    )
    top.add_argument(
        "--checkpoint-dir",
        type=_named,
        metavar="FOLDER",
        help="the folder in which the command saves by itself, instead of {checkpoint}",
    )
    for kind, meaning in _GLOBS.items():
        top.add_argument(
            f"--{kind}", action="append", default=[], metavar="GLOB", help=f"{meaning}; repeatable"
        )
    top.add_argument(
        "--allow-no-output",
        action="store_true",
        help="exit code 0 means done even if the command saved nothing",
    )
    top.add_argument(
        "--result-gb",
        type=_size,
        default=RESULT_GB_MAX,
        help="limit for new files in the working folder that become the result; default "
        "%(default)g",
    )
    top.add_argument(
        "--rerun", type=_count, default=0, help="another number trains the same command again"
    )
    # For the supervisor of a VM.
    top.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    top.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    top.add_argument("--folder", default="", help=argparse.SUPPRESS)
    top.add_argument("--programs", type=Path, help=argparse.SUPPRESS)
    return top


_GLOBS = {
    "checkpoint": "checkpoint files; no other file makes a checkpoint",
    "log": "files that only grow and make no checkpoint by themselves",
    "by-product": "files that come with a checkpoint but make none by themselves",
}


def _known_globs() -> str:
    """The default globs, for the help."""
    known = {
        f"logs (but {' '.join(kinds.JOURNALS)})": kinds.LOGS,
        "by-products": kinds.BY_PRODUCTS,
        "temporary, never kept": kinds.TEMPORARY,
    }
    texts = [
        textwrap.fill(
            f"{name}: {' '.join(globs)}", HELP_WIDTH, subsequent_indent="  ", break_on_hyphens=False
        )
        for name, globs in known.items()
    ]
    begin = "Without --checkpoint, all files are checkpoint files except these:"
    return "\n".join([begin, *texts]).replace("%", "%%")


def main(argv: Sequence[str]) -> int:
    """Run one command; a user's error is one sentence on stderr."""
    fill_streams()
    own, command = _split(argv)
    try:
        options = parser().parse_known(own)
        command = _command(options, command)
    except SystemExit as error:
        return exits.USAGE if error.code else exits.DONE
    except CommandError as error:
        say(str(error))
        return exits.USAGE
    try:
        # `outlast train` blocks Ctrl-C during its start, until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if os.environ.get(SOCKET_VARIABLE):
            with _signals_left_to_supervisor() as signals:
                return _run(command, os.environ[SOCKET_VARIABLE], signals)
        return _run_in_folder(command, options)
    except CommandFailed as error:
        if not os.environ.get(SOCKET_VARIABLE):
            say(error.sentence)
        return error.code
    except LoopError as error:
        say(str(error))
        return exits.USAGE if isinstance(error, CommandError) else exit_code(error)
    except OSError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted before the command began")
        return exits.INTERRUPTED


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options before ``--``, and the command after it."""
    words = list(argv)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def _command(options: argparse.Namespace, words: list[str]) -> Command:
    if not words or not words[0]:
        raise CommandError(
            "command: is missing; write it after --, as in outlast train -- python train.py "
            "(outlast train --help lists the options)"
        )
    if options.shell and len(words) != 1:
        raise CommandError(
            f"--shell with {len(words)} words: takes one line; put it into quotes, or leave "
            "--shell out"
        )
    for path in options.data:
        if "://" not in path and not Path(path).exists():
            raise CommandError(f"--data {path}: no such file or folder")
    home = options.home
    return Command(
        argv=() if options.shell else tuple(words),
        line=words[0] if options.shell else "",
        home=home,
        source=options.source,
        folder=options.folder,
        cwd=Path.cwd() if home is None else None,
        programs=options.programs,
        data=tuple(options.data),
        quiet_sec=options.checkpoint_quiet_sec,
        kinds=kinds.Kinds(tuple(options.checkpoint), tuple(options.log), tuple(options.by_product)),
        checkpoint_dir=options.checkpoint_dir or "",
        allow_no_output=options.allow_no_output,
        result_gb_max=options.result_gb,
        rerun=options.rerun,
    )


def _run(command: Command, socket_path: str, signals: Interrupts | Heard, repeat: str = "") -> int:
    """Run the command; ``repeat`` is advice on how to run a finished command again."""
    with contextlib.closing(Session(connect(socket_path), total=None)) as session:
        try:
            answer = session.welcome(
                stopped=lambda: isinstance(signals, Interrupts) and signals.requested
            )
            if isinstance(answer, Ended):
                say(answer.message)
                if answer.state == State.DONE and repeat:
                    say(f"to run the same command again: {repeat}")
                return answer.exit
            runner = Runner(command, session, answer, signals)
            signal.signal(signal.SIGABRT, runner.dump_stacks)
            return runner.run()
        except SupervisorLost:
            raise
        except (LoopError, OSError) as error:
            lines = error.lines if isinstance(error, CommandFailed) else []
            session.report(str(error), _kind_of(error), lines)
            raise


def _run_in_folder(command: Command, options: argparse.Namespace) -> int:
    """Run the command with a supervisor that this process starts for a folder."""
    # Checked first, because a mistyped command must not claim the folder.
    command.check()
    command.check_program()
    own = default_folder(COMMAND, command.identity, None)
    folder = options.run_dir or own
    for path in command.data:
        check_apart(path, folder)
    if "://" not in str(folder):
        check_checkpoint_dir(command, Path(folder))
    # The command's own folders are on this machine, even if its checkpoints go to a bucket.
    home = (own if "://" in str(folder) else Path(folder)).absolute() / "live"
    with contextlib.ExitStack() as cleanup:
        interrupts = Interrupts()
        interrupts.what = "stopping the command"
        interrupts.install()
        cleanup.callback(interrupts.restore)
        try:
            for path in command.data:
                data.find(path)
        except LoopError:
            # The terminal's Ctrl-C ended the download too; the next attempt continues it.
            if interrupts.requested:
                return exits.INTERRUPTED
            raise
        # After a second Ctrl-C the supervisor may still read the folder.
        cleanup.callback(lambda: interrupts.impatient or remove_home(home))
        supervisor = LocalSupervisor(
            folder,
            trainer=COMMAND,
            run=run_name(COMMAND, command.identity, None),
            checkpoint_every=options.checkpoint_every,
        )
        cleanup.callback(supervisor.forget_socket)
        supervisor.wait_for_socket(CONNECT_SEC)
        try:
            repeat = (
                f"another --run-dir, or --rerun {command.rerun + 1} without one"
                if options.run_dir
                else f"--rerun {command.rerun + 1}"
            )
            code = _run(
                replace(command, home=home), str(supervisor.socket_path), interrupts, repeat
            )
        except SupervisorLost as error:
            if error.exit is None:
                error.exit = supervisor.wait(LAST_WORDS_SEC)
            raise
        except (LoopError, OSError):
            supervisor.wait(LAST_WORDS_SEC)
            raise
        except SystemExit:  # before the welcome: it may wait for an unavailable store
            supervisor.abandon()
            supervisor.wait(LAST_WORDS_SEC)
            raise
        # It finishes its work by itself; only a completed run must wait for that.
        ended = supervisor.wait(None if code == exits.DONE else LAST_WORDS_SEC)
        if code == exits.DONE:
            check_end(ended)
        return code


@contextlib.contextmanager
def _signals_left_to_supervisor() -> Iterator[Heard]:
    """A context in which the supervisor decides what signals mean. The terminal's Ctrl-C and a
    stopping system's SIGTERM reach every process, and the supervisor reports over the socket what
    to do. Uses handlers, because the command would inherit SIG_IGN."""
    heard = Heard()
    previous = {
        number: signal.signal(number, heard.note) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield heard
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _kind_of(error: BaseException) -> str:
    for kind, of in (
        ("does-not-fit", DoesNotFit),
        ("no-output", NoOutput),
        ("result-too-large", ResultTooLarge),
    ):
        if isinstance(error, of):
            return kind
    return "usage" if isinstance(error, CommandError | DataError) else "trainer"


def _named(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: must be a path; leave it out for none")
    return text


def _every(text: str) -> str:
    try:
        if parse_every(text).steps is None:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: must be auto, or seconds such as 60s")


def _seconds(text: str) -> float:
    return _number(text, "a number of seconds above 0")


def _size(text: str) -> float:
    return _number(text, "a number of GB above 0")


def _number(text: str, rule: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be {rule}")
    return found


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 0 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
