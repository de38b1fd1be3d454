"""The baker's role of docs/teams.md: with it and the deployer's, each step of a bake works; without
one of its permissions a named step is refused."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import yaml

from outlast.cloud import bake, builder, images, recipe
from outlast.cloud.compute import Compute, ComputeError
from tests.localcloud.local_cloud import PROJECT
from tests.localcloud.provider.test_provider import ZONE, unique
from tests.localcloud.provider.test_provider import stub as stub
from tests.localcloud.provider.test_provider import whole_cloud as whole_cloud
from tests.settings import test_deployer_role as deployer
from tests.settings.test_deployer_role import World, tried
from tests.settings.test_deployer_role import world as world

pytestmark = pytest.mark.rehearsal

ROLE_FILE = deployer.ROLE_FILE.with_name("baker.yaml")
STEP_OF = dict(re.findall(r"^- (\S+)  # (.+)$", ROLE_FILE.read_text(), re.MULTILINE))
"""Each permission of the role, with the step that it is for."""
BASE = f"projects/{PROJECT}/global/images/family/outlast"
LABELS = {"managed-by": "outlast", "project": "outlast", "stack": "dev"}


class Baking:
    """One bake, whose builder the owner creates and which does nothing by itself."""

    def __init__(self, w: World, *, builds: bool = True, image: bool = False) -> None:
        self.w = w
        data = [{"url": "gs://somewhere/a", "sha256": "0" * 64}]
        given: dict[str, Any] = {"family": unique("own"), "base": BASE, "data": data}
        checked = recipe.check(given, base=BASE, project=PROJECT, zone=ZONE)
        self.baked = recipe.Baked(checked, "0123456789abcdef" * 4, {})
        self.order = builder.Order(LABELS, service_account=w.account)
        self.bake = bake._Bake(self.baked, self.order)
        self.vm = f"zones/{ZONE}/instances/{self.baked.builder}"
        name = self.as_owner("GET", "global/images/family/outlast")["name"]
        self.base = images.Image(BASE, PROJECT, name, "outlast")
        if builds:
            body = builder.body(self.baked, self.order, self.base)
            script = {"key": "startup-script", "value": "sleep 600"}
            attributes = {"key": "enable-guest-attributes", "value": "TRUE"}
            body |= {"metadata": {"items": [script, attributes]}}
            self.as_owner("POST", f"zones/{ZONE}/instances", body)
        if image:
            made: dict[str, Any] = {"name": self.baked.image, "family": checked.family}
            made["sourceImage"] = BASE
            made["labels"] = {**LABELS, "component": builder.COMPONENT}
            self.as_owner("POST", "global/images", made)

    def as_owner(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.w.cloud.call(method, f"/compute/v1/projects/{PROJECT}/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def __enter__(self) -> "Baking":
        return self

    def __exit__(self, *_: object) -> None:
        for path in (self.vm, f"global/images/{self.baked.image}"):
            with suppress(AssertionError):
                self.as_owner("DELETE", path)


def find_the_base(w: World) -> None:
    found = images.resolve(BASE, PROJECT)
    if isinstance(found, images.Unknown):
        raise ComputeError(403, found.why)
    assert isinstance(found, images.Image)


def create_the_builder(w: World) -> None:
    with Baking(w, builds=False) as baking:
        body = builder.body(baking.baked, baking.order, baking.base)
        baking.bake._order_call("POST", f"zones/{ZONE}/instances", body)


def watch_the_builder(w: World) -> None:
    with Baking(w) as baking:
        assert baking.bake._builder() is not None
        assert baking.bake._guest_attributes() == {}


def read_its_serial_port(w: World) -> None:
    with Baking(w) as baking:
        assert "contents" in Compute(PROJECT).call("GET", f"{baking.vm}/serialPort")


def stop_the_builder(w: World) -> None:
    with Baking(w) as baking:
        baking.bake._turn_off()


def make_the_image(w: World) -> None:
    with Baking(w) as baking:
        baking.as_owner("POST", f"{baking.vm}/stop")
        baking.bake._make_image()


def wait_for_the_image(w: World) -> None:
    with Baking(w, builds=False, image=True) as baking:
        baking.bake._wait_for_image()


def retire_the_image_before(w: World) -> None:
    with Baking(w, builds=False, image=True) as baking:
        name = baking.baked.image
        newest = {"name": f"{name}-new", "selfLink": f"https://x/{name}-new"}
        other = recipe.Baked(baking.baked.recipe, "f" * 64, {})
        bake._Bake(other, baking.order)._retire_others(newest)


def delete_old_images(w: World) -> None:
    with Baking(w, builds=False, image=True) as baking:
        bake.remove(baking.baked.recipe.family, PROJECT, LABELS)
        names = [image["name"] for image in Compute(PROJECT).listed("global/images")]
        assert baking.baked.image not in names


def clear_the_builder(w: World) -> None:
    with Baking(w) as baking:
        # A disk that its VM has left is deleted by itself.
        name = unique("disk")
        disk = {"name": name, "sizeGb": "10"}
        baking.as_owner("POST", f"zones/{ZONE}/disks", disk)
        bake._delete_vm(baking.bake._compute, ZONE, baking.baked.builder)
        Compute(PROJECT).delete(f"zones/{ZONE}/disks/{name}", limit_sec=60.0)


STEPS: Mapping[str, Callable[[World], None]] = {
    one.__name__.replace("_", " "): one
    for one in (
        *(find_the_base, create_the_builder, watch_the_builder, read_its_serial_port),
        *(stop_the_builder, make_the_image, wait_for_the_image, retire_the_image_before),
        *(delete_old_images, clear_the_builder),
    )
}


@pytest.fixture
def refusal(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Why a step is refused without a permission."""
    monkeypatch.setattr(bake, "SILENT_SEC", 0.0)  # permissions may spread for five minutes

    def without(permission: str, step: str) -> str:
        both = [*deployer.STEP_OF, *STEP_OF]
        world.permit(tuple(one for one in both if one != permission))
        return tried(partial(STEPS[step], world))

    yield without


@pytest.mark.parametrize("step", STEPS)
def test_with_both_roles_each_step_works(step: str, refusal: Callable[[str, str], str]) -> None:
    assert refusal("", step) == ""


@pytest.mark.parametrize("permission", STEP_OF)
def test_without_a_permission_its_step_is_refused_by_name(
    permission: str, refusal: Callable[[str, str], str]
) -> None:
    assert permission in refusal(permission, STEP_OF[permission])


def test_the_role_adds_to_the_deployers_and_the_page_names_it() -> None:
    role = yaml.safe_load(ROLE_FILE.read_text())
    assert role["includedPermissions"] == list(STEP_OF)
    assert set(STEP_OF.values()) == set(STEPS), "each step is one that a permission is for"
    assert not set(STEP_OF) & set(deployer.STEP_OF)
    page = (ROLE_FILE.parents[2] / "docs" / "teams.md").read_text()
    assert "--file examples/roles/baker.yaml" in page
