"""A command's checkpoint that someone else wrote changes nothing outside its folder."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from outlast.loop.command.folder import Copier
from outlast.loop.command.own_folder import make_ready
from outlast.loop.errors import DoesNotFit

GOOD: dict[str, Any] = {
    "format": 1,
    "said": "mark",
    "ended": False,
    "learned": {},
    "folders": {"sub": [1, 1, 0o755]},
    "links": {"last": "sub/weights"},
    "modes": {},
    "times": {"sub/weights": [1, 1]},
    "odd": {},
}


class Place:
    """A victim's home with a checkpoint folder in it, and a snapshot to put back."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.root = self.home / "runs/checkpoint"
        self.root.mkdir(parents=True)
        (self.home / "precious").mkdir()
        (self.home / "precious/thesis.tex").write_text("years of work")
        self.snapshot = folder / "snapshot"
        (self.snapshot / "files/sub").mkdir(parents=True)
        (self.snapshot / "files/sub/weights").write_text("w")

    def put_back(self, **changed: Any) -> None:
        (self.snapshot / "command.json").write_text(json.dumps({**GOOD, **changed}))
        Copier(self.root, [self.snapshot.parent]).put_back(self.snapshot)

    def outside(self) -> dict[str, tuple[int, str]]:
        """All of the home but the checkpoint folder's content."""
        found = {}
        for path in sorted(self.home.rglob("*")):
            if path.is_relative_to(self.root) and path != self.root:
                continue
            said = os.readlink(path) if path.is_symlink() else ""
            said = path.read_text() if path.is_file() else said
            found[str(path.relative_to(self.home))] = (path.lstat().st_mode, said)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_valid_checkpoint_is_restored(place: Place) -> None:
    place.put_back()
    assert (place.root / "last").read_text() == "w"


ESCAPES = ("/tmp/outlast-hostile", "../../made", "sub/../../../made", "a/./b", "", "a//b", "a\0b")


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "a/" * 2048 + "a", "\ud800"])
@pytest.mark.parametrize("key", ["folders", "links", "odd"])
def test_names_that_no_file_can_have_are_refused_by_name(place: Place, key: str, name: str) -> None:
    value = {"folders": [1, 1, 0o755], "links": "sub", "odd": "000000"}
    with pytest.raises(DoesNotFit, match=rf"command.json: {key} .*a file system of Linux takes"):
        place.put_back(**{key: {**GOOD[key], name: value[key]}})
    with pytest.raises(DoesNotFit, match=r"command.json: link 'last' leads to .*must lead into"):
        place.put_back(links={"last": name})
    assert list(place.root.iterdir()) == []


def test_a_name_that_is_too_long_below_this_root_is_refused_by_name(place: Place) -> None:
    deep = "/".join(["d" * 250] * 16)
    with pytest.raises(
        DoesNotFit, match=r"command.json: .*is longer than a file name may be on this system"
    ):
        place.put_back(folders={**GOOD["folders"], deep: [1, 1, 0o755]})


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("key", ["folders", "links", "modes", "times", "odd"])
def test_names_that_leave_the_folder_are_refused_by_name(place: Place, key: str, name: str) -> None:
    value = {"folders": [1, 1, 0o755], "links": "sub", "modes": 0o755, "times": [1, 1]}
    before = place.outside()
    with pytest.raises(DoesNotFit, match=rf"command.json: {key} .*must be a relative path"):
        place.put_back(**{key: {**GOOD[key], name: value.get(key, "000000")}})
    assert place.outside() == before and list(place.root.iterdir()) == []


@pytest.mark.parametrize(
    "links",
    [
        {"evil": "/etc"},
        {"evil": "../../precious"},
        {"evil": "sub/../../x"},
        {"sub/evil": "../.."},
        {"evil": ""},
        {"evil": 7},
    ],
)
def test_links_that_lead_out_are_refused_by_name(place: Place, links: dict[str, Any]) -> None:
    before = place.outside()
    with pytest.raises(DoesNotFit, match="link .*evil"):
        place.put_back(links=links)
    assert place.outside() == before and list(place.root.iterdir()) == []


def test_a_link_that_leads_out_over_another_link_is_refused(place: Place) -> None:
    """``sub/up/..`` stays inside by its name alone, and is the folder above in truth."""
    before = place.outside()
    with pytest.raises(DoesNotFit, match="link 'evil'.*outside"):
        place.put_back(links={"sub/up": "..", "evil": "sub/up/.."})
    assert place.outside() == before
    assert not any(path.is_symlink() for path in place.root.rglob("*"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"links": {"sub": "."}}, "folder and a file or a link"),
        (
            {"links": {"link": "sub"}, "folders": {**GOOD["folders"], "link/x": [1, 1, 0o755]}},
            "below",
        ),
        ({"links": {"sub/weights": "."}}, "twice"),
        ({"links": {"sub/weights/x": "."}}, "below"),
        ({"odd": {"link/x": "000000"}, "links": {"link": "sub"}}, "below"),
        ({"odd": {"sub/weights": "000000"}}, "twice"),
    ],
)
def test_nothing_is_written_through_a_link_or_a_file(
    place: Place, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(DoesNotFit, match=said):
        place.put_back(**changed)
    assert list(place.root.iterdir()) == []


@pytest.mark.parametrize(
    "number", ["../../home/precious/thesis.tex", "/etc/passwd", "1", 1, "٠٠٠٠٠٠"]
)
def test_the_number_in_an_odd_name_cannot_be_a_path(place: Place, number: Any) -> None:
    before = place.outside()
    with pytest.raises(DoesNotFit, match="must be 6 digits"):
        place.put_back(odd={"odd\n": number}, times={**GOOD["times"], "odd\n": [1, 1]})
    assert place.outside() == before


def test_modes_give_nothing_to_others(place: Place) -> None:
    place.put_back(modes={"sub/weights": 0o6777}, folders={"sub": [1, 1, 0o7777]})
    assert stat.S_IMODE((place.root / "sub/weights").stat().st_mode) == 0o775
    assert stat.S_IMODE((place.root / "sub").stat().st_mode) == 0o775


def test_a_file_with_another_name_keeps_its_mode_there(place: Place) -> None:
    """A hard link in the snapshot, such as of an archive that was unpacked."""
    victim = place.home / "precious/thesis.tex"
    (place.snapshot / "files/sub/weights").unlink()
    os.link(victim, place.snapshot / "files/sub/weights")
    before = place.outside()
    place.put_back(modes={"sub/weights": 0o755})
    (place.root / "sub/weights").write_text("the trainer writes it again")
    assert place.outside() == before


def test_a_link_in_the_snapshot_is_refused(place: Place) -> None:
    (place.snapshot / "files/evil").symlink_to(place.home / "precious")
    with pytest.raises(DoesNotFit, match="files/evil: is a link"):
        place.put_back()


@pytest.mark.parametrize("name", ["sub", "sub/weights", "last"])
def test_existing_files_are_neither_followed_nor_overwritten(place: Place, name: str) -> None:
    """A link that the trainer made before, or two names that are one where case does not count."""
    (place.root / name).parent.mkdir(exist_ok=True)
    (place.root / name).symlink_to(place.home / "precious")
    before = place.outside()
    with pytest.raises(DoesNotFit):
        place.put_back()
    assert place.outside() == before


def test_a_folder_with_only_links_is_moved_aside_before_the_restore(place: Place) -> None:
    (place.root / "sub").symlink_to(place.home / "precious")
    said = make_ready(place.root, attempt=2, restores=True, is_copy=False, before={})
    assert said and "checkpoint.attempt-1" in said
    place.put_back()
    assert (place.root / "sub/weights").read_text() == "w"
    assert [path.name for path in (place.home / "precious").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"said": ["mark"]},
        {"said": "x" * 99},
        {"ended": "yes"},
        {"learned": {"shapes": [1], "together": None, "members": {}}},
        {"learned": {"members": 1}},
        {"folders": ["sub"]},
        {"folders": {"sub": [1, 1]}},
        {"folders": {"sub": [1, 1, True]}},
        {"links": []},
        {"modes": {"sub/weights": "755"}},
        {"modes": {"none": 0o755}},
        {"times": {}},
        {"times": {"sub/weights": [1 << 80, 1]}},
        {"times": {"sub/weights": [1.5, 1]}},
        {"odd": {"odd\n": "000000"}, "times": {**GOOD["times"], "odd\n": [1, 1]}},
        {"more": 1},
    ],
)
def test_another_format_is_refused(place: Place, changed: dict[str, Any]) -> None:
    with pytest.raises(DoesNotFit, match="command.json"):
        place.put_back(**changed)
    assert list(place.root.iterdir()) == []


def test_links_are_kept_only_if_they_stay_inside(place: Place, tmp_path: Path) -> None:
    (place.root / "model").write_text("m")
    (place.root / "out").symlink_to(place.home / "precious")
    (place.root / "above").symlink_to("../..")
    (place.root / "here").symlink_to(place.root / "model")
    (tmp_path / "work").mkdir()
    taken = Copier(place.root, [tmp_path / "work"]).take("snap-1")
    assert taken.links_left == ("above", "out")
    again = tmp_path / "again"
    again.mkdir()
    Copier(again, [tmp_path / "work"]).put_back(taken.folder)
    assert sorted(path.name for path in again.iterdir()) == ["here", "model"]
    assert os.readlink(again / "here") == "model"
