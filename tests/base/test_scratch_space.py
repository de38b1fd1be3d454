"""Where things that can be fetched again are kept, with a home and without."""

import os
from pathlib import Path

import pytest

from outlast.base.scratch_space import NotPrivate, cache_home, give_back


def test_a_cache_is_where_the_user_says_or_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_home("outlast", "OUTLAST_X") == tmp_path / ".cache/outlast"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_home("outlast", "OUTLAST_X") == tmp_path / "xdg/outlast"
    monkeypatch.setenv("OUTLAST_X", str(tmp_path / "own"))
    assert cache_home("outlast", "OUTLAST_X") == tmp_path / "own"


def test_a_user_without_a_home_has_a_cache_below_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    here = os.getuid()
    monkeypatch.setattr("pathlib.Path.home", _no_home)
    assert cache_home("outlast", "OUTLAST_X") == tmp_path / f"outlast-{here}"
    assert (tmp_path / f"outlast-{here}").stat().st_mode & 0o777 == 0o700


def _no_home() -> Path:
    raise RuntimeError("the user is in no passwd file")


@pytest.mark.parametrize("how", ["link", "open", "file", "another's"])
def test_a_cache_that_another_user_may_have_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", _no_home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = tmp_path / f"outlast-{os.getuid()}"
    if how == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "theirs")
    elif how == "file":
        place.write_text("x")
    else:
        place.mkdir()
        place.chmod(0o777 if how == "open" else 0o700)
    if how == "another's":
        real = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: real + 1)
        place.rename(tmp_path / f"outlast-{real + 1}")
    with pytest.raises(NotPrivate if how != "file" else OSError, match="outlast-"):
        cache_home("outlast", "OUTLAST_X")


def test_the_first_bytes_of_a_file_give_their_room_back_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_bytes(b"a" * (1 << 20) + b"the rest")
    before = file.stat()
    give_back(file, 1 << 20)
    after = file.stat()
    assert after.st_size == before.st_size
    assert file.read_bytes()[1 << 20 :] == b"the rest"
    assert after.st_blocks < before.st_blocks or file.read_bytes().startswith(b"aaaa")
    with file.open("ab") as rows:
        rows.write(b" grows")
    assert file.read_bytes().endswith(b"the rest grows")
