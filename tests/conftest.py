"""`--all-tiers`: the tiers that need no other machine and no long time, in one run."""

import functools
import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from outlast.loop import program

SLOW_TIERS = ("engine", "rehearsal")
OTHERS = ("guest", "long", "gpu", "frameworks")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-tiers",
        action="store_true",
        help="the tiers fast, engine and rehearsal together; fails where one of them ran no test",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in the background with these ignored, and so would be all programs
    # that the tests start and then interrupt.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            own = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, own)
    if config.getoption("--all-tiers"):
        config.option.markexpr = " and ".join(f"not {other}" for other in OTHERS)
        config.pluginmanager.register(Tiers())


def pytest_collection_finish() -> None:
    """The thousands of tests themselves stay: neither a collection nor a search for what refers to
    an object goes through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _quiet_log() -> Iterator[None]:
    """What a command that ran within this process has set up is not the next test's."""
    logger = logging.getLogger("outlast")
    before = list(logger.handlers)
    yield
    logger.handlers[:] = before


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Nor are the variables that a command or a bench has set in this process."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def _only_its_own_program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hundreds of other test modules in this process are not the program that trains here; to
    walk through them after each step takes longer than all else."""
    is_programs = program._is_programs_module
    own = request.module.__name__

    @functools.lru_cache(4096)
    def only_own(name: str) -> bool:
        is_another = name.rpartition(".")[2].startswith("test_") and name != own
        return not is_another and is_programs(name)

    monkeypatch.setattr(program, "_is_programs_module", only_own)


class Tiers:
    """Counts what ran of each tier."""

    def __init__(self) -> None:
        self._ran: Counter[str] = Counter({tier: 0 for tier in ("fast", *SLOW_TIERS)})

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """A report carries its test's tier to the process that counts."""
        for item in items:
            tier = next((tier for tier in SLOW_TIERS if item.get_closest_marker(tier)), "fast")
            item.user_properties.append(("tier", tier))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._ran[str(dict(report.user_properties)["tier"])] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not all(self._ran.values()) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        counts = ", ".join(f"{tier} {number}" for tier, number in self._ran.items())
        terminalreporter.write_line(f"tests that ran by tier: {counts}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Reports go from the workers to pytest as UTF-8; a log line may quote odd text."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
