"""What `outlast dev sync` copies, and what it refuses to."""

import os
import subprocess
from pathlib import Path

import pytest

from outlast.cli.dev.source import Source, digest_of
from outlast.cli.errors import UsageError
from outlast.spec import bundle


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("x = 1\n")
    (folder / "lib/model.py").write_text("y = 1\n")
    return folder


def names(folder: Path, *exclude: str) -> list[str]:
    return sorted(Source(folder, exclude).look())


def kinds(source: Source) -> dict[str, str]:
    return source.kinds(source.look())


def test_secrets_caches_and_environments_stay_here(folder: Path) -> None:
    for name in (
        *(".git/config", ".env", ".env.local", "prod.env", ".venv/pyvenv.cfg", "env/pyvenv.cfg"),
        *("env/lib/x.py", "sub/venv/pyvenv.cfg", "sub/venv/y.py", "__pycache__/train.pyc", "a.pem"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("secret\n")
    assert names(folder) == ["lib/model.py", "train.py"]


def test_what_git_ignores_stays_here(folder: Path) -> None:
    subprocess.run(["git", "-C", str(folder), "init", "-q"], check=True)
    (folder / ".gitignore").write_text("runs/\n*.ckpt\n")
    (folder / "runs").mkdir()
    for name in ("runs/a", "last.ckpt", "env/pyvenv.cfg", "env/lib/x.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("1\n")
    assert names(folder) == ["lib/model.py", "train.py"]


def test_more_can_be_excluded(folder: Path) -> None:
    assert names(folder, "lib") == ["train.py"]
    assert names(folder, "*.py") == []
    with pytest.raises(UsageError, match="^--exclude glob '/x': must be"):
        Source(folder, ["/x"])


def test_links_inside_are_links_and_those_that_lead_out_are_refused(folder: Path) -> None:
    source = Source(folder)
    (folder / "now.py").symlink_to("lib/model.py")
    assert kinds(source)["now.py"] == "-> lib/model.py"
    for target in ("../outside", "/etc/passwd", str(folder / "train.py"), "lib/../../outside"):
        (folder / "now.py").unlink()
        (folder / "now.py").symlink_to(target)
        with pytest.raises(UsageError, match=r"^now.py: is a link to .*, which is not below"):
            kinds(source)


def test_a_link_that_leads_out_by_another_link_is_refused(folder: Path) -> None:
    (folder / "here").symlink_to(".")
    (folder / "far").symlink_to("here/here/here/../../../outside")
    with pytest.raises(UsageError, match=r"^far: is a link"):
        kinds(Source(folder))


def test_a_file_with_a_key_is_refused(folder: Path) -> None:
    (folder / "train.py").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n")
    with pytest.raises(UsageError, match=r"^train.py: line 1 holds a"):
        kinds(Source(folder))


def test_data_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "SOURCE_BYTES_MAX", 4)
    with pytest.raises(UsageError, match=r"more than 0 MiB of files; keep data in the bucket"):
        names(folder)


def test_only_a_file_that_changed_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(folder)
    for file in ("train.py", "lib/model.py"):
        os.utime(folder / file, (1, 1))  # otherwise it is too young to be known
    before = kinds(source)
    read = []
    whole = source.read
    monkeypatch.setattr(source, "read", lambda name: read.append(name) or whole(name))
    assert kinds(source) == before and read == []
    (folder / "train.py").write_text("x = 2\n")
    after = kinds(source)
    assert read == ["train.py"] and digest_of(after) != digest_of(before)
    (folder / "lib/model.py").chmod(0o755)
    assert kinds(source)["lib/model.py"] == before["lib/model.py"] + "x"


def test_a_second_write_within_the_clocks_grain_is_seen(folder: Path) -> None:
    source = Source(folder)
    (folder / "train.py").write_text("x = 1\n")
    looks = [source.look()]
    before = source.kinds(looks[0])
    stamp = (folder / "train.py").stat()
    (folder / "train.py").write_text("x = 2\n")
    os.utime(folder / "train.py", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    os.utime(folder / "lib/model.py", (1, 1))
    while looks[-1]["train.py"][-1]:  # still young
        looks.append(source.look())
    assert looks[-1] != looks[0]
    assert source.kinds(looks[-1])["train.py"] != before["train.py"]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder; name it with --source"):
        Source(tmp_path / "none")
