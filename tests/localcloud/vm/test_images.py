"""An image's folder that someone else prepared changes only the disk that it is for."""

import json
from pathlib import Path

import pytest

from outlast.localcloud.vm import disks, images


@pytest.fixture
def image(tmp_path: Path) -> Path:
    disk = tmp_path / "old"
    (disk / "bin").mkdir(parents=True)
    (disk / "bin/tool").write_text(f"#!{disk}/bin/python")
    (disk / "link").symlink_to(disk / "bin/tool")
    (disk / "out").symlink_to(tmp_path / "home")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/keep").write_text(f"{disk} precious")
    images.bake(disk, tmp_path / "image")
    return tmp_path / "image"


def test_paths_of_the_old_root_become_paths_of_the_new_one(image: Path, tmp_path: Path) -> None:
    images.unpack(image, tmp_path / "new")
    assert (tmp_path / "new/bin/tool").read_text() == f"#!{tmp_path}/new/bin/python"
    assert (tmp_path / "new/link").readlink() == tmp_path / "new/bin/tool"
    assert (tmp_path / "home/keep").read_text().endswith("precious")


@pytest.mark.parametrize("name", ["../home/keep", "out/keep", "{home}/keep", "bin/../../home/keep"])
def test_a_name_that_leads_off_the_disk_is_refused(image: Path, tmp_path: Path, name: str) -> None:
    record = json.loads((image / "image.json").read_bytes())
    record["names_root"] = [name.format(home=tmp_path / "home")]
    (image / "image.json").write_text(json.dumps(record))
    before = (tmp_path / "home/keep").read_text()
    with pytest.raises(OSError, match="does not lie on the image's disk"):
        images.unpack(image, tmp_path / "new")
    assert (tmp_path / "home/keep").read_text() == before


@pytest.mark.parametrize("name", ["tmp", "etc", "usr", "usr/local/bin", "var/tmp", "run", "home"])
def test_a_folder_of_the_image_that_is_a_link_is_not_followed(
    image: Path, tmp_path: Path, name: str
) -> None:
    """A new disk gets its folders, with their modes, and a name: none of it off the disk."""
    home = tmp_path / "home"
    home.chmod(0o700)
    link = image / "disk" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(home)
    images.unpack(image, tmp_path / "new")
    with pytest.raises(OSError, match=f"{name}: is a link in the VM's image"):
        disks.make_folders(tmp_path / "new")
    assert home.stat().st_mode & 0o777 == 0o700 and [p.name for p in home.iterdir()] == ["keep"]
