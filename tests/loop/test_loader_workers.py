"""A worker of a DataLoader that dies: the program fails as with any other exception, and the same
command resumes with the batch that was not used."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.loop import programs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]

PROGRAM = """
import json, os, signal, sys
import torch
import outlast

run_dir, die_at = sys.argv[1], int(sys.argv[2])
workers, kill = int(os.environ.get("WORKERS", "2")), int(os.environ.get("KILL", "0"))

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, row):
        if row == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return row

def main():
    torch.manual_seed(0)
    sampler = outlast.BatchSampler(40, batch_size=4, seed=1)
    loader = torch.utils.data.DataLoader(
        Rows(), batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 2,
        multiprocessing_context="fork" if workers else None
    )
    rows = []
    state = {"sampler": sampler, "rows": rows, "rng": torch.random}
    with outlast.train(
        state, 10, run_dir=run_dir, name="x", arguments={}, checkpoint_every="1"
    ) as run:
        for step, batch in zip(run.steps(), sampler.over(loader)):
            rows.append(batch.tolist())
            run._side.session.wait_committed(60)
            if step == kill:
                os._exit(9)
        run.result("out.json").write_text(json.dumps(rows))

if __name__ == "__main__":
    main()
"""


def test_a_dead_worker_is_an_exception_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "WAIT_SEC", 240.0)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(folder: str, die_at: int = -1):
        done = programs.run(tmp_path, [sys.executable, "program.py", folder, str(die_at)])
        programs.wait_until_alone(tmp_path)
        return done

    baseline = run("baseline")
    assert baseline.returncode == 0, baseline.stderr
    rows = json.loads(programs.result_of(tmp_path / "baseline")["out.json"])
    failed = run("failed", rows[7][2])
    # As torch meets it: the worker itself, or the connection that a batch came over.
    died = re.compile(r"DataLoader worker|Connection|EOFError")
    assert failed.returncode == 1 and "Traceback" in failed.stderr
    assert died.search(failed.stderr.splitlines()[-1]), failed.stderr
    assert programs.head(tmp_path / "failed")["state"] == "open"
    end = json.loads((tmp_path / "failed" / "attempts" / "000001" / "end.json").read_bytes())
    assert end["reason"] == "user-failed" and died.search(json.dumps(end)), end
    assert 0 < programs.newest(tmp_path / "failed") <= 7
    again = run("failed")
    assert again.returncode == 0, again.stderr
    assert json.loads(programs.result_of(tmp_path / "failed")["out.json"]) == rows


def test_the_number_of_workers_may_change_between_two_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "WAIT_SEC", 240.0)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(folder: str, **more: str):
        done = programs.run(tmp_path, [sys.executable, "program.py", folder, "-1"], **more)
        programs.wait_until_alone(tmp_path)
        return done

    assert run("baseline", WORKERS="0").returncode == 0
    for workers, kill in (("2", "4"), ("0", "7")):
        assert run("killed", WORKERS=workers, KILL=kill).returncode == 9
        assert programs.newest(tmp_path / "killed") >= int(kill) - 2
    again = run("killed", WORKERS="3")
    assert again.returncode == 0 and "resumes at step" in again.stderr, again.stderr
    ends = [programs.result_of(tmp_path / each)["out.json"] for each in ("baseline", "killed")]
    assert json.loads(ends[0]) == json.loads(ends[1])
