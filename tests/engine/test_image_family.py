"""A recipe under the real engine: baked once, booted from, baked again when its content changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.bucket.layout import AttemptStart
from outlast.bucket.store import open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.engine.conftest import Project, Watch, checkout_on_a_separate_cloud

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]

IMAGES = f"/compute/v1/projects/{clouds.PROJECT}/global/images"


@pytest.fixture
def stack(parts: engines.Parts, tmp_path: Path) -> Iterator[Project]:
    """A checkout whose VMs install from the wheels of `make setup`, and from nowhere else."""
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": parts.wheels}
    with checkout_on_a_separate_cloud(parts, tmp_path, guest_env=env) as made:
        made.set("outlast:args.epochs", "2")
        made.set("outlast:image", "projects/debian-cloud/global/images/family/debian-13")
        yield made


def family(stack: Project) -> dict[str, dict[str, Any]]:
    listed = stack.cloud.call("GET", IMAGES)["items"]
    return {one["name"]: one for one in listed if one.get("family") == "own"}


def test_a_recipe_is_baked_booted_from_and_baked_again(
    stack: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)
    stack.set("outlast:imageRecipe.base", "deeplearning-platform-release/tf-latest-gpu")
    stack.set("outlast:imageRecipe.family", "own")
    assert "outlast:imageRecipe: installs nothing" in stack.up(fails=True)
    stack.set("outlast:imageRecipe.trainers", "true")
    said = stack.pulumi("preview", "-s", "dev", fails=True)
    assert "has not existed since" in said and "its successor is" in said
    stack.set("outlast:imageRecipe.base", "debian-cloud/debian-13")
    stack.set("outlast:delivery", "image")

    # What stops a bake is one sentence.
    stack.set("outlast:imageRecipe.packages[0]", "tree")
    said = stack.up(fails=True)
    assert "error: builder bake-own-" in said and "step packages failed" in said
    assert "no system of this VM's own to install packages into" in said
    assert "Traceback" not in said and "BakeError" not in said
    assert family(stack) == {}
    stack.pulumi("config", "rm", "-s", "dev", "--path", "outlast:imageRecipe.packages")

    stack.up()
    store = open_store("gs://outlast-rehearsal-outlast")
    run = Watch(stack, store)
    (first,) = family(stack)
    assert run.outputs["image"].endswith(f"/{first}")
    run.wait_until_gone()
    run.done()
    (item,) = [i for i in store.list(run.layout.attempts) if i.path.endswith("/start.json")]
    assert AttemptStart.from_json(store.get(item.path)[0]).image.endswith(f"/{first}")
    assert [vm for vm in stack.cloud.vms() if vm["name"].startswith("bake-")] == []
    assert stack.steps() == {}

    # Another content and another run: another image, the first deprecated.
    script = stack.folder / "install.sh"
    script.write_text('#!/bin/bash\ntouch "$OUTLAST_IMAGE/mark"\n')
    stack.set("outlast:imageRecipe.script", "install.sh")
    stack.set("outlast:args.epochs", "1")
    # What the run needs is in the image: no environment is made of it.
    stack.set("outlast:imageRecipe.requirements", "requirements/vm.txt")
    stack.set("outlast:requirements", "requirements/vm.txt")
    stack.up()
    run = Watch(stack, store)
    run.wait_until_gone()
    run.done()
    assert list(store.list(run.layout.environments)) == []
    images = family(stack)
    (second,) = images.keys() - {first}
    assert images[first]["deprecated"]["state"] == "DEPRECATED"
    assert run.outputs["image"].endswith(f"/{second}")

    stack.destroy()
    assert family(stack) == {}
    left = stack.cloud.audit()
    assert (left["vms"], left["disks"]) == ([], [])
