"""The bench of recoveries times a real trainer that is killed and resumes."""

import json
from pathlib import Path

from bench import recovery


def test_a_recovery_is_its_three_parts_and_stands_beside_a_bare_process(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = ["--trainer", "dummy", "--rounds", "1", "--keep", str(tmp_path / "runs")]
    code = recovery.main([*words, "--json", str(out)])
    (line,) = json.loads(out.read_text())["parts"][0]["rows"]
    parts = [line[name] for name in ("fetch", "restore", "warm-up")]
    assert all(part >= 0 for part in parts) and parts[0] > 0 and parts[2] > 0
    assert abs(sum(parts) - line["recovery ms"]) <= 2  # rounded
    assert line["bare ms"] > 0 and line["met"] is (code == 0)
    modules = (tmp_path / "runs" / "dummy" / "modules").read_text().splitlines()
    assert "numpy" in modules and not any(name.startswith("outlast") for name in modules)
    files = (tmp_path / "runs" / "dummy" / "files").read_text().splitlines()
    assert any(name.endswith("MANIFEST.json") for name in files) and len(files) > 1
