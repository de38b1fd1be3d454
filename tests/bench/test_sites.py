"""What the benches share: a local cloud."""

from pathlib import Path

import pytest

from bench import sites
from outlast.cli.errors import OperateError


class SlowToEnd:
    """A local cloud that takes each call, and does not end in time."""

    def call(self, method: str, path: str, body: object = None) -> dict[str, object]:
        return {}

    def stop(self) -> None:
        raise OperateError("local cloud 7: did not end in time and was killed.")


def test_a_cloud_that_ends_late_takes_no_figures_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sites.clouds, "start", lambda *_, **__: SlowToEnd())
    with sites.local_cloud(tmp_path, tmp_path / "plans", tmp_path):
        figures = [1, 2]
    assert figures == [1, 2]
    assert "did not end in time" in capsys.readouterr().err
