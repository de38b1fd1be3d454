"""A supervisor in a thread, named by the environment as the real one is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast import protocol
from tests.loop.fake_supervisor import FakeSupervisor, serving


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSupervisor]:
    with serving(tmp_path / "supervisor") as fake:
        monkeypatch.setenv(protocol.SOCKET_VARIABLE, str(fake.socket))
        yield fake
