"""A recipe's rules, and what its hash covers."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from outlast.cloud import recipe
from outlast.spec import startup_script

BASE = "debian-cloud/debian-13"
SHA = "0" * 64


def check(**given: Any) -> recipe.Recipe:
    return recipe.check(given, base=BASE, project="own", zone="europe-west4-a")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recipe, "PACKAGE", tmp_path)
    for folder in ("requirements", "image"):
        (tmp_path / folder).mkdir()
    shutil.copytree(startup_script.STARTUP, tmp_path / "startup")
    (tmp_path / "requirements/vm.txt").write_text(
        "numpy==2 --hash=sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a\n"
    )
    (tmp_path / "image/lock.txt").write_text(
        "torch==2 --hash=sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a\n"
    )
    (tmp_path / "image/loose.txt").write_text("torch\n")
    (tmp_path / "image/install.sh").write_text("#!/bin/bash\n")
    (tmp_path / "image/.env").write_text("#!TOKEN=1")
    (tmp_path / "image/.cache").mkdir()
    (tmp_path / "image/.cache/install.sh").write_text("#!/bin/bash\n")
    (tmp_path / "image/id_rsa").write_text("#!key")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"base": BASE}, "installs nothing"),
        ({"package": ["gcc"]}, "Recipe.package: is not part of a recipe; did you mean packages?"),
        ({"qqqq": 1}, "outlast:imageRecipe.qqqq: is not part of a recipe; its parts are base,"),
        (
            {"packages": ["git", "gcc; reboot"]},
            "outlast:imageRecipe.packages[1] 'gcc; reboot': must be a package's name",
        ),
        ({"packages": ["git", 3]}, "outlast:imageRecipe.packages[1] 3: must be a package's name"),
        (
            {"packages": {"git": "1"}},
            "imageRecipe.packages {'git': '1'}: must be a list; correct it",
        ),
        ({"packages": 0}, "imageRecipe.packages 0: must be a list"),
        ({"requirements": ["a.txt"]}, "imageRecipe.requirements ['a.txt']: must be a file in"),
        ({"script": {"a": 1}}, "imageRecipe.script {'a': 1}: must be a file in the checkout"),
        ({"family": True}, "imageRecipe.family True: must be a name such as outlast"),
        ({"driver": [580]}, "imageRecipe.driver [580]: must be a branch"),
        ({"data": {"url": "x"}}, "imageRecipe.data {'url': 'x'}: must be a list"),
        ({"data": ["gs://b/y"]}, "imageRecipe.data[0] 'gs://b/y': must have url, sha256"),
        ({"data": [{"url": 3}]}, "imageRecipe.data[0].url 3: must begin with https"),
        ({"trainers": [True]}, "imageRecipe.trainers [True]: must be true or false"),
        ({"trainers": True, "diskGb": 1.5}, "imageRecipe.diskGb '1.5': must be a whole number"),
        ({"packages": "gcc"}, "packages 'gcc': must be a list"),
        ({"driver": "latest"}, "driver 'latest': must be a branch"),
        ({"cuda": "twelve"}, "cuda 'twelve': must be a version"),
        (
            {"data": [{"url": "http://x/y", "sha256": SHA}]},
            "imageRecipe.data[0].url 'http://x/y': must begin with https",
        ),
        (
            {"data": [{"url": "gs://bucket/y"}]},
            "imageRecipe.data[0].sha256 None: must be the file's 64",
        ),
        ({"data": [{"url": "gs://bucket/y", "sha256": SHA, "path": "../y"}]}, "without .."),
        ({"data": [{"url": "gs://b/y", "sha256": SHA, "path": "y" * 256}]}, "at most 255"),
        (
            {"data": [{"url": f"gs://bucket/{n}/y", "sha256": SHA} for n in "ab"]},
            "each must have its own path",
        ),
        ({"family": "f" * 41, "trainers": True}, "at most 40 characters"),
        ({"trainers": "perhaps"}, "trainers 'perhaps': must be true or false"),
        ({"trainers": True, "limitMinutes": 0}, "limitMinutes '0': must be a whole number"),
        ({"trainers": True, "shareWith": ["everybody"]}, "imageRecipe.shareWith[0] 'everybody'"),
        ({"trainers": True, "project": 5}, "imageRecipe.project 5: must be a project's id"),
    ],
)
def test_a_recipe_that_breaks_a_rule_is_refused(given: dict[str, Any], words: str):
    with pytest.raises(recipe.RecipeError) as caught:
        check(**given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"requirements": "image/loose.txt"}, "must be locked with hashes"),
        ({"requirements": "image/none.txt"}, "must be a file in the checkout"),
        ({"script": "/etc/passwd"}, "must be a file in the checkout"),
        ({"script": "image/lock.txt"}, "must begin with #!"),
        ({"script": "image/.env"}, "never enter an image"),
        ({"script": "image/id_rsa"}, "never enter an image"),
        ({"script": "image/.cache/install.sh"}, "never enter an image"),
        ({"script": "s" * 300}, "must be a file in the checkout"),
        ({"script": "a\0b"}, "must be a file in the checkout"),
    ],
)
def test_files_that_cannot_enter_an_image_are_refused(root: Path, given: Any, words: str):
    with pytest.raises(recipe.RecipeError) as caught:
        recipe.read(check(**given), root)
    assert words in str(caught.value)


def test_a_locked_file_stands_for_what_it_includes(root: Path):
    line = f"numpy==2 --hash=sha256:{'0a' * 32}\n"
    (root / "image/base.txt").write_text(line)
    (root / "image/all.txt").write_text("-r base.txt\n")
    found = recipe.read(check(requirements="image/all.txt"), root).files["requirements"]
    assert found == line.replace(" --", " \\\n    --").encode()
    (root / "image/base.txt").write_text("numpy=2\n")
    with pytest.raises(recipe.RecipeError, match=r"requirements image/base\.txt line 1 'numpy=2'"):
        recipe.read(check(requirements="image/all.txt"), root)


def test_the_hash_covers_what_the_image_holds_and_nothing_of_the_builder(root: Path):
    given = {"requirements": "image/lock.txt", "script": "image/install.sh"}
    first = recipe.read(check(**given), root)
    same = recipe.read(
        check(**given, machineType="c3-highcpu-22", zone="us-central1-a", limitMinutes=9), root
    )
    assert first.hash == same.hash
    assert first.image == f"outlast-{first.hash[:10]}" and first.builder == f"bake-{first.image}"

    others = [recipe.read(check(**given, packages=["gcc"]), root).hash]
    others.append(recipe.read(check(**given, base="debian-cloud/debian-12"), root).hash)
    (root / "image/lock.txt").write_text(
        "torch==3 --hash=sha256:0b0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a\n"
    )
    others.append(recipe.read(check(**given), root).hash)
    assert len({first.hash, *others}) == 4


@pytest.mark.parametrize("name", ["bake.sh", "lib.sh", "system.sh", "interpreter.sh", "boot.sh"])
def test_the_hash_covers_every_script_that_the_builder_runs(root: Path, name: str):
    before = recipe.read(check(packages=["gcc"]), root).hash
    script = root / "startup" / name
    script.write_text(f"{script.read_text()}# changed\n")
    changes = recipe.read(check(packages=["gcc"]), root).hash != before
    assert changes == (name != "boot.sh")


def test_the_bundle_counts_only_where_the_trainers_are_baked_in(root: Path):
    plain, baked = check(packages=["gcc"]), check(trainers=True)

    def hashes(one: recipe.Recipe) -> set[str]:
        return {recipe.read(one, root, bundle_sha256=digit * 64).hash for digit in "12"}

    assert len(hashes(plain)) == 1 and len(hashes(baked)) == 2


@pytest.mark.parametrize(
    ("given", "stack", "words"),
    [
        (
            {},
            {"network": "isolated", "internet": False},
            "outlast:imageRecipe beside outlast:network 'isolated': the builder installs from the"
            " internet",
        ),
        ({}, {"internet": False}, "beside outlast:network 'default'"),
        (
            {"project": "images"},
            {"network": "isolated"},
            "imageRecipe.project 'images': the builder is in that project, and outlast:network"
            " 'isolated' in own",
        ),
        (
            {"zone": "us-central1-a"},
            {"network": "corp", "subnetwork": "here"},
            "imageRecipe.zone 'us-central1-a': the builder's subnetwork is in europe-west4",
        ),
        ({"zone": "us-central1-a"}, {"network": "isolated"}, "subnetwork is in europe-west4"),
        ({"zone": "us-central1-a", "project": "images"}, {}, None),
        ({"project": "images"}, {"network": "projects/host/global/networks/shared"}, None),
        ({}, {"network": "isolated"}, None),
    ],
)
def test_a_builder_works_in_the_stacks_network_or_not_at_all(given, stack, words):
    where = {"network": "default", "subnetwork": "", "internet": True, **stack}
    said = recipe.network_refusal(
        check(trainers=True, **given), project="own", region="europe-west4", **where
    )
    assert words in said if words else said is None


def test_a_recipe_survives_the_state(root: Path):
    one = check(trainers=True, data=[{"url": "gs://bucket/a/y.npz", "sha256": SHA}])
    state = recipe.read(one, root).state
    assert recipe.from_dict({**state, "disk_gb": 50.0, "limit_minutes": 120.0}) == one
