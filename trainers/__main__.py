"""``python -m outlast.trainers NAME --flag …``: train, or evaluate with ``--mode eval``.

A name with a slash is the path of another trainer, without its ``.py``.

Exit codes are those of outlast/base/exits.py: 0 done, 64 bad usage, 75 interrupted (the same
command resumes), 76 another process has taken over the run's folder, 1 any other failure.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from outlast import trainers
from outlast.base import exits
from outlast.base.suggest import did_you_mean
from outlast.loop import LoopError
from outlast.loop.errors import exit_code
from outlast.trainers.flags import UsageError


def main(argv: Sequence[str]) -> int:
    """Run the trainer that the first argument names, with the other arguments."""
    known = ", ".join(trainers.names())
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: python -m outlast.trainers NAME --flag …\n\ntrainers: {known}")
        return exits.DONE if argv else exits.USAGE
    name, *flags = argv
    if os.sep in name:
        path = Path(name)
        if not (path.with_name(f"{path.name}.py").is_file() or (path / "__init__.py").is_file()):
            print(
                f"trainer {name!r}: no {path.name}.py and no package {path.name}/ in"
                f" {path.parent}; name (on a VM: set outlast:trainer to) one that exists",
                file=sys.stderr,
            )
            return exits.USAGE
    elif name not in trainers.names():
        hint = " ".join(filter(None, (did_you_mean(name, trainers.names()), f"known are {known}")))
        print(f"trainer {name!r}: unknown; {hint}", file=sys.stderr)
        return exits.USAGE
    try:
        module = trainers.load_from(Path(name)) if os.sep in name else trainers.load(name)
        if not callable(getattr(module, "main", None)):
            print(
                f"trainer {name!r}: has no function main(argv), which trains; write it as in "
                f"trainers/dummy.py, or run the script itself: outlast train -- python {name}.py",
                file=sys.stderr,
            )
            return exits.USAGE
        return module.main(flags)
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return exits.USAGE
    except LoopError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:  # During the steps, the loop handles Ctrl-C.
        print(f"{name}: interrupted before the first step", file=sys.stderr)
        return exits.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
