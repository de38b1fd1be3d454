"""The newest rows of an attempt, and the last value of each metric, read while they are written."""

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.spec.metrics import Last
from outlast.supervisor import latest
from outlast.supervisor.latest import Latest


def write(path: Path, *rows: dict[str, Any], end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(map(json.dumps, rows)) + end)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_before_any_row_there_is_nothing(path: Path) -> None:
    found = Latest(path)
    found.read()
    assert (found.rows, found.metrics) == ((), {})


def test_each_metric_keeps_its_last_value(path: Path) -> None:
    found = Latest(path)
    write(path, {"step": 1, "loss": 0.9}, {"step": 2, "loss": 0.8, "accuracy": 0.5})
    found.read()
    write(path, {"step": 3, "loss": None})
    found.read()
    assert found.metrics == {"loss": Last(3, None), "accuracy": Last(2, 0.5)}
    assert [row["step"] for row in found.rows] == [1, 2, 3]


def test_an_incomplete_row_is_read_once_it_is_complete(path: Path) -> None:
    found = Latest(path)
    write(path, {"step": 1, "loss": 0.9}, end='\n{"step": 2, "lo')
    found.read()
    assert found.metrics == {"loss": Last(1, 0.9)}
    with path.open("a") as file:
        file.write('ss": 0.5}\n')
    found.read()
    assert found.metrics == {"loss": Last(2, 0.5)}


def test_only_the_end_of_very_many_rows_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "READ_BYTES_MAX", 1000)
    found = Latest(path)
    write(path, *({"step": step, "loss": float(step)} for step in range(1, 1001)))
    found.read()
    assert found.metrics == {"loss": Last(1000, 1000.0)} and len(found.rows) == latest.ROWS


def test_many_and_long_names_and_texts_stay_small(path: Path) -> None:
    found = Latest(path)
    names = {f"metric-{number}": number for number in range(latest.NAMES_MAX + 7)}
    write(path, {"step": 1, **names, "text": "x" * 9999, "n" * 9999: 1})
    found.read()
    assert len(found.metrics) == latest.NAMES_MAX
    assert found.metrics["text"] == Last(1, "x" * latest.CHARS_MAX)
    assert "n" * 9999 not in found.metrics and found.rows == ()
