"""The command's entry point, which handles Ctrl-C from the start, even during imports."""

import sys

from outlast.base import exits
from outlast.base.console import fill_streams
from outlast.base.folders import missing_data


def main() -> None:
    """Entry point of `outlast` and of `python -m outlast.cli`."""
    fill_streams()
    if missing := missing_data():
        print(f"outlast: {missing}", file=sys.stderr)
        sys.exit(1)
    try:
        from outlast.cli.app import main as command

        command()
    except KeyboardInterrupt:
        print("outlast: interrupted", file=sys.stderr)
        sys.exit(exits.CTRL_C)


if __name__ == "__main__":
    main()
