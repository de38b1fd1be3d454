"""`make coverage` fails where a part takes too few branches, and leaves out only what it must."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.tools.test_docs import ROOT
from tools import branches

FRAMEWORK = re.compile(r"^\s*(?:import|from) (?:torch|jax|flax|keras|xgboost)\b", re.M)


def measured(taken: int, of: int) -> dict[str, Any]:
    missing = [[line, line + 1] for line in range(taken, of)]
    return {
        "summary": {"num_branches": of, "covered_branches": taken},
        "missing_branches": missing,
    }


def report(tmp_path: Path, **changed: dict[str, Any]) -> str:
    files = {f"{folder}a.py": measured(100, 100) for folder in branches.PARTS.values()}
    files |= {name.replace("__", "/") + ".py": file for name, file in changed.items()}
    file = tmp_path / "coverage.json"
    file.write_text(json.dumps({"files": {k: v for k, v in files.items() if v}}))
    return str(file)


@pytest.mark.parametrize(("taken", "code"), [(90, 0), (89, 1)])
def test_a_part_needs_95_per_cent_of_its_branches_in_all_of_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken: int, code: int
) -> None:
    file = report(tmp_path, outlast__loop__b=measured(taken, 100), outlast__cli__c=measured(0, 99))
    assert branches.main([file]) == code
    said = capsys.readouterr().out
    assert f"loop: {(100 + taken) / 2:.1f} % of branches\n" in said
    assert f"  {taken}.0 % outlast/loop/b.py: at {taken}, " in said
    assert "outlast/loop/a.py" not in said and "cli" not in said
    assert ("A part is below 95 %" in said) == bool(code)


def test_a_part_that_was_not_measured_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert branches.main([report(tmp_path, outlast__bucket__a={})]) == 1
    assert "bucket: no branch of outlast/bucket/ was measured" in capsys.readouterr().out


def test_only_files_that_need_a_framework_are_left_out() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    left_out = settings["omit"]
    assert left_out and settings["branch"]
    assert [name for name in left_out if not FRAMEWORK.search((ROOT / name).read_text())] == []
    folders = [folder for folder in branches.PARTS.values() if not (ROOT / folder).is_dir()]
    assert folders == []
