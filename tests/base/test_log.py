"""Where the log goes, and what it never shows."""

import logging
import subprocess
import sys

from outlast.base.log import log_to

_log = logging.getLogger("outlast.base.test_log")


def test_a_process_shows_each_line_once_where_its_last_call_said():
    first, second = list[str](), list[str]()
    log_to(first.append)
    log_to(second.append)
    _log.info("a plain line with 100%s of it")
    _log.info("restored %d of %d", 3, 4)
    assert (first, second) == ([], ["a plain line with 100%s of it", "restored 3 of 4"])


def test_no_handler_sees_a_secret(caplog):
    shown = list[str]()
    log_to(shown.append, lambda text: text.replace("hunter2", "***"))
    _log.info("password hunter2")
    _log.info("password %s for %s", "hunter2", "me")
    assert shown == caplog.messages == ["password ***", "password *** for me"]


def test_an_import_sets_up_nothing_and_shows_nothing():
    """A trainer's own process imports parts of Outlast, and has its own logging."""
    program = """
import logging
import outlast.bucket.commit, outlast.bucket.fetch, outlast.loop, outlast.supervisor.life
assert not logging.getLogger("outlast").handlers and not logging.getLogger().handlers
logging.getLogger("outlast.base.retry").info("storage: 503; trying again")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
