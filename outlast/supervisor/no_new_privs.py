"""Run a command that can gain no rights: set-user-ID programs and file capabilities give it none.

    python -I -S no_new_privs.py COMMAND …

Exit codes: 126 the command cannot be run, 1 the kernel refuses; else the command's own. Standard
library only, and run by its path.
"""

import ctypes
import os
import signal
import sys

PR_SET_NO_NEW_PRIVS = 38


def main(argv: list[str]) -> int:
    """Replaces this process with the command; returns only if that fails."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        print(f"no_new_privs: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 1
    # Python ignores these signals, and the command would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: user {os.getuid()} cannot run it ({error.strerror})", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
