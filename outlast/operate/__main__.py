"""The command's first lines: from here on Ctrl-C is one line, however much is still to be
imported."""

import sys

from outlast import exits


def main() -> None:
    """Entry point of `outlast` and of `python -m outlast.operate`."""
    try:
        from outlast.operate.cli import main as command

        command()
    except KeyboardInterrupt:
        print("outlast: interrupted", file=sys.stderr)
        sys.exit(exits.CTRL_C)


if __name__ == "__main__":
    main()
