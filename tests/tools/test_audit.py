"""`make audit`: it finds what a database knows, and never takes silence for a good answer.

The database is a server on loopback; pip-audit is the real one where `.venv-audit` exists (`make
test` makes it), and a stand-in that fails in its ways.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser import served
from tools import audit

ROOT = Path(audit.__file__).parents[1]
CANARY = "==".join(audit.KNOWN_AS_VULNERABLE)
STAND_IN = """
import json, sys
pins = [line.strip().split("==") for line in open(sys.argv[sys.argv.index("--requirement") + 1])]
answers = [{"name": name, "version": version, "vulns": []} for name, version in pins]
canary = pins == [["jinja2", "2.4.1"]]
if canary:
    answers[0]["vulns"] = [{"id": "PYSEC-2021-66"}]
%s
print(json.dumps({"dependencies": answers, "fixes": []}))
sys.exit(any(one.get("vulns") for one in answers))
"""
LOCK = """# comment
numpy==2.4.0 ; python_full_version < '3.12' \\
    --hash=sha256:00 \\
    --hash=sha256:01
    # via something
Numpy==2.5.0 ; sys_platform == 'never' \\
    --hash=sha256:02
old-Package==1.0 --hash=sha256:03
"""
ALL = {"numpy==2.4.0", "numpy==2.5.0", "old-package==1.0"}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "set.txt"
    path.write_text(LOCK)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command; returns its exit code and what it printed."""

    def call(*words: object) -> tuple[int, str, str]:
        code = audit.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


# With a stand-in for pip-audit


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("sys.exit('requests.exceptions.ConnectionError: no route')", "ConnectionError: no route"),
        ("print('WARNING:pip_audit._service.osv:schema 2', file=sys.stderr)", "schema 2"),
        ("answers[0] = {**answers[0], 'skip_reason': 'not found'}", "about jinja2==2.4.1"),
        ("canary or answers.pop()", "about old-package==1.0 and 0 more"),
        ("canary or sys.exit(0)", "about numpy==2.4.0 and 1 more: it ended with 0"),
        ("canary or (print('{}'), sys.exit(1))", "about numpy==2.4.0"),
        ("answers[0]['vulns'] = []", "nothing is known against jinja2 2.4.1, which is wrong"),
    ],
)
def test_anything_but_a_whole_answer_is_not_audited(
    run: Run, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, said: str
) -> None:
    (tmp_path / "pip_audit.py").write_text(STAND_IN % does)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, out, err = run("--python", sys.executable, lock)
    assert (code, out) == (audit.NOT_AUDITED, "") and code not in (0, 1, 2)
    assert err.startswith("not audited: ") and said in err and err.count("\n") == 1


def test_without_pip_audit_or_a_package_nothing_is_audited(run: Run, lock: Path, tmp_path: Path):
    code, _, err = run("--python", tmp_path / "python", lock)
    assert code == audit.NOT_AUDITED and err.startswith("not audited: pip-audit: ")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    code, _, err = run(tmp_path / "empty.txt")
    assert code == 3 and err.startswith("not audited: requirements: no locked package was found;")
    (tmp_path / "loose.txt").write_text("numpy>=2\n")
    code, _, err = run(tmp_path / "loose.txt")
    assert code == 3 and "loose.txt: 'numpy>=2' is not NAME==VERSION" in err


def test_each_version_of_each_package_is_looked_up(
    run: Run, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    (tmp_path / "pip_audit.py").write_text(
        STAND_IN % f"open({str(asked)!r}, 'a').write(''.join('=='.join(p) + '\\n' for p in pins))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, out, err = run("--python", sys.executable, lock)
    assert (code, err) == (audit.CLEAN, ""), err
    assert out == "3 locked packages looked up; known vulnerabilities: 0\n"
    assert set(asked.read_text().split()) == {CANARY, *ALL}


def test_the_checkouts_own_locks_are_read_and_none_is_forgotten() -> None:
    files = [*sorted((ROOT / "requirements").glob("*.txt")), audit.BENCH]
    pins = audit.locked(files)
    assert {file.name for file in files} == {name for names in pins.values() for name in names}
    assert sorted(pin for group in audit.layers(pins) for pin in group) == sorted(pins)
    assert "audit.txt" in pins["pip-audit", "2.10.1"]


# With pip-audit itself


@pytest.mark.skipif(
    not (ROOT / ".venv-audit/bin/python").exists(), reason="needs .venv-audit: make audit-setup"
)
class TestPipAudit:
    @pytest.fixture
    def known(self) -> dict[tuple[str, str], Any]:
        """What the database knows."""
        entry = {
            "id": "OSV-2",
            "aliases": ["CVE-2"],
            "summary": "x",
            "affected": [
                {
                    "package": {"name": "old-package", "ecosystem": "PyPI"},
                    "ranges": [
                        {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}
                    ],
                }
            ],
        }
        canary = {"id": "OSV-1", "summary": "x", "affected": []}
        return {audit.KNOWN_AS_VULNERABLE: canary, ("old-package", "1.0"): entry}

    @pytest.fixture
    def answer(self, known: dict[tuple[str, str], Any]) -> Callable[..., tuple[str, bytes]]:
        def of(method: str, path: str, body: str) -> tuple[str, bytes]:
            asked = json.loads(body)
            entry = known.get((asked["package"]["name"], asked["version"]))
            return "application/json", json.dumps({"vulns": [entry]} if entry else {}).encode()

        return of

    def test_what_is_known_is_printed_with_its_files(self, run: Run, lock: Path, answer: Any):
        with served(answer) as port:
            code, out, err = run("--database", f"http://127.0.0.1:{port}/v1/query", lock)
        assert (code, err) == (audit.VULNERABLE, "")
        assert out == (
            "old-package 1.0 (set.txt): CVE-2, OSV-2; fixed in 1.1\n"
            "3 locked packages looked up; known vulnerabilities: 1\n"
        )

    def test_nothing_known_is_clean(self, run: Run, lock: Path, answer: Any, known: Any):
        del known["old-package", "1.0"]
        with served(answer) as port:
            code, out, _ = run("--database", f"http://127.0.0.1:{port}/v1/query", lock)
        assert (code, out) == (0, "3 locked packages looked up; known vulnerabilities: 0\n")

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b"{}", "nothing is known against jinja2 2.4.1"),
            (b"<html>log in</html>", "JSONDecodeError"),
            (b'{"error":"quota"}', "KeyError"),
            (b'{"vulns":[{"schema_version":"2.0","id":"X"}]}', "Unsupported OSV schema"),
        ],
    )
    def test_a_portals_answer_is_not_audited(self, run: Run, lock: Path, body: bytes, said: str):
        with served(lambda *_: ("application/json", body)) as port:
            code, out, err = run("--database", f"http://127.0.0.1:{port}/v1/query", lock)
        assert (code, out) == (audit.NOT_AUDITED, "") and said in err

    def test_a_database_that_cannot_be_reached_is_not_audited(self, run: Run, lock: Path):
        with served(lambda *_: ("", b"")) as port:
            pass
        code, out, err = run("--database", f"http://127.0.0.1:{port}/v1/query", lock)
        assert (code, out) == (audit.NOT_AUDITED, "")
        assert err.startswith(f"not audited: http://127.0.0.1:{port}/v1/query: pip-audit got no")
