"""Runs the commands behind docs/results.md again and keeps what they find.

    python -m bench.results                            what there is: name, result, date, command
    python -m bench.results zombie-matrix ageing       runs these two
    python -m bench.results ageing -- --commits 5000   with other arguments, which the page says
    python -m bench.results --page                     writes docs/results.md (make tables)

A result that does not hold is kept as well. Exit codes: 0 all hold, 1 one does not, 64 bad usage,
69 a command could not measure (of one that found nothing, the kept result stays).
"""

import argparse
import sys
from collections.abc import Sequence

from bench.results import kept, page
from bench.results.entries import ENTRIES
from outlast.base.exits import DONE, USAGE
from outlast.base.suggest import choices

FAILED, CANNOT = 1, 69


def parser() -> argparse.ArgumentParser:
    """The command line, without what comes after `--`."""
    made = argparse.ArgumentParser(
        prog="python -m bench.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="whose command is run")
    made.add_argument("--page", action="store_true", help="write docs/results.md")
    made.add_argument("--check", action="store_true", help="say whether that page is out of date")
    return made


def main(argv: Sequence[str]) -> int:
    """Run, list, or write the page."""
    words = [*argv]
    at = words.index("--") if "--" in words else len(words)
    args, instead = parser().parse_args(words[:at]), words[at + 1 :]
    if args.check:
        return _check()
    entries = {entry.name: entry for entry in ENTRIES}
    for name in args.names:
        if name not in entries:
            print(f"result {name!r}: unknown; {choices(name, entries)}", file=sys.stderr)
            return USAGE
    if instead and len(args.names) != 1:
        print(f"-- {instead[0]}: arguments need exactly one NAME before them", file=sys.stderr)
        return USAGE
    codes = [_run(name, instead) for name in args.names]
    if args.page or args.names:
        if page.write():
            print("docs/results.md")
    else:
        for entry in ENTRIES:
            body = kept.read(entry)
            date = body["header"]["date"] if body else ""
            said = page.outcome(entry, body, kept.read_older(entry))
            print(f"{entry.name:24} {said:30} {date:21} {entry.command}")
    return CANNOT if CANNOT in codes else FAILED if FAILED in codes else DONE


def _run(name: str, instead: Sequence[str]) -> int:
    (entry,) = (entry for entry in ENTRIES if entry.name == name)
    print(f"== {name}", flush=True)
    code, is_written = kept.run(entry, instead)
    if not is_written:
        print(f"{name}: its command found nothing (exit code {code})", file=sys.stderr)
        return CANNOT
    return code if code in (DONE, FAILED) else CANNOT


def _check() -> int:
    if page.is_current():
        return DONE
    print("docs/results.md: is out of date; run make tables", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
