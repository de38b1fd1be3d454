"""A bake's decisions, against a platform that loses answers; the real work is
tests/localcloud's."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.cloud import bake, builder, images, recipe
from outlast.cloud.bake import BakeError
from outlast.cloud.compute import CannotAsk, Compute, Missing
from tests.log_lines import log_lines

BASE = images.Image("https://x/debian-13-1", "debian-cloud", "debian-13-1", "debian-13")
ROOT = Path(__file__).parents[2]
SILENT = CannotAsk(503, "no answer")


class Platform(Compute):
    """Compute Engine: one builder at most, one image, and what it does not answer.

    `lost` are orders, by their beginning, that it carries out without an answer; `refused` are
    those that it neither answers nor carries out.
    """

    def __init__(self) -> None:
        super().__init__("p")
        self.there: dict[str, dict[str, Any]] = {}
        self.report = {"state": "done"}
        self.lost: tuple[str, ...] = ()
        self.refused: tuple[str, ...] = ()
        self.orders: list[str] = []

    def call(self, method: str, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        assert method == "GET"
        self._refuse(f"GET {path}")
        if "getGuestAttributes" in path:
            self._get(path.partition("/getGuest")[0])
            items = [{"key": key, "value": value} for key, value in self.report.items()]
            return {"queryValue": {"items": items}}
        return self._get(path)

    def aggregated(self, kind: str) -> list[dict[str, Any]]:
        self._refuse(f"GET aggregated/{kind}")
        return [one for name, one in self.there.items() if f"/{kind}/" in name]

    def listed(self, path: str, **_: Any) -> list[dict[str, Any]]:
        return [one for name, one in self.there.items() if name.startswith(path)]

    def order(self, method: str, path: str, body: Any = None, *, limit_sec: float) -> None:
        said = f"{method} {path}"
        self.orders.append(said)
        self._refuse(said)
        if method == "DELETE":
            self._get(path)
            del self.there[path]
        elif path.endswith("/stop"):
            self._get(path.removesuffix("/stop"))["status"] = "TERMINATED"
        elif path.endswith("/deprecate"):
            self._get(path.removesuffix("/deprecate"))["deprecated"] = body
        else:
            self.there[f"{path}/{body['name']}"] = {
                **body,
                "selfLink": f"https://x/{body['name']}",
                "status": "READY" if path.endswith("images") else "RUNNING",
            }
        if said.startswith(self.lost):
            raise SILENT

    def _refuse(self, said: str) -> None:
        if said.startswith(self.refused):
            raise SILENT

    def _get(self, path: str) -> dict[str, Any]:
        if path not in self.there:
            raise Missing(404, f"{path}: not found")
        return self.there[path]


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    made = Platform()
    monkeypatch.setattr(bake, "Compute", lambda *_, **__: made)
    monkeypatch.setattr(bake, "POLL_SEC", (0.0, 0.0))
    monkeypatch.setattr(bake, "SILENT_SEC", 0.0)
    monkeypatch.setattr(images, "resolve", lambda *_, **__: BASE)
    return made


def baked(**given: Any) -> recipe.Baked:
    checked = recipe.check(
        {"family": "own", "packages": ["git"], **given},
        base="debian-cloud/debian-13",
        project="p",
        zone="europe-west4-a",
    )
    return recipe.Baked(checked, "0123456789abcdef" * 4, {})


def made(platform: Platform, **order: Any) -> str:
    given: Mapping[str, Any] = {"labels": {"stack": "dev"}, **order}
    return bake.bake(baked(), builder.Order(**given))


def family_image(name: str, stack: str) -> dict[str, dict[str, Any]]:
    labels = {"component": "image-family", "project": "outlast", "stack": stack}
    return {"global/images/family/own": {"name": name, "labels": labels}}


def builder_of(stack: str) -> dict[str, dict[str, Any]]:
    labels = {"component": "image-family", "project": "outlast", "stack": stack}
    path = "zones/europe-west4-a/instances/bake-own-1"
    return {path: {"name": "bake-own-1", "labels": labels}}


@pytest.mark.parametrize(
    ("base", "given", "label"),
    [
        ("debian-cloud", {}, "none"),
        ("debian-cloud", {"driver": "580"}, None),
        ("p", {}, None),
        ("deeplearning-platform-release", {}, None),
    ],
)
def test_an_image_without_a_gpu_driver_is_labelled(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, base: str, given: Any, label: str | None
):
    what = baked(**given)
    source = f"https://x/compute/v1/projects/{base}/global/images/base-1"
    disk = f"zones/europe-west4-a/disks/{what.builder}"
    platform.there[disk] = {"sourceImage": source}
    asked = images.Image("", base, "base-1", "")
    monkeypatch.setattr(images, "resolve", lambda *_, **__: asked)
    bake.bake(what, builder.Order({"stack": "dev"}))
    labels = platform.there[f"global/images/{what.image}"]["labels"]
    assert (labels["base-image"], labels.get("gpu-driver")) == ("base-1", label)
    again = images.Image("", "p", what.image, "own", labels=labels)
    assert again.lacks_driver is (label == "none")


@pytest.mark.parametrize(
    ("there", "left"),
    [
        ({}, False),
        (family_image("own-1", "dev"), False),
        (family_image("own-2", "dev"), True),
        (family_image("own-2", "other"), False),
        ({**family_image("own-1", "dev"), **builder_of("dev")}, True),
        ({**family_image("own-1", "dev"), **builder_of("other")}, False),
    ],
)
def test_what_a_killed_bake_has_left_is_seen(
    platform: Platform, there: dict[str, dict[str, Any]], left: bool
):
    platform.there = there
    labels = {"project": "outlast", "stack": "dev", "owner": "me"}
    assert bake.has_left("https://x/images/own-1", "own", "p", labels) is left
    assert platform.orders == []


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (
            {},
            {
                "network": "global/networks/default",
                "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
            },
        ),
        (
            {
                "network": "projects/p/global/networks/n",
                "subnetwork": "projects/p/regions/europe-west4/subnetworks/s",
                "external_ip": False,
            },
            {
                "network": "projects/p/global/networks/n",
                "subnetwork": "projects/p/regions/europe-west4/subnetworks/s",
            },
        ),
        (
            {"network": "corp", "subnetwork": "here", "external_ip": False},
            {
                "network": "global/networks/corp",
                "subnetwork": "regions/europe-west4/subnetworks/here",
            },
        ),
    ],
)
def test_the_builder_is_in_the_stacks_network(platform: Platform, order, expected):
    body = builder.body(baked(), builder.Order({}, **order), BASE)
    assert body["networkInterfaces"] == [expected]


def test_an_image_whose_answer_was_lost_is_asked_for(platform: Platform):
    platform.lost = ("POST global/images",)
    said = log_lines()
    assert made(platform) == "https://x/own-0123456789"
    assert list(platform.there) == ["global/images/own-0123456789"]
    assert any("checking whether it is being created" in one for one in said)


def test_an_image_that_was_not_made_leaves_nothing(platform: Platform):
    platform.refused = ("POST global/images",)
    with pytest.raises(
        BakeError, match="image own-0123456789: does not exist; run pulumi up again"
    ):
        made(platform)
    assert platform.there == {}


def test_a_builder_is_never_a_spot_vm_and_its_limit_deletes_it():
    scheduling = builder.body(baked(limitMinutes=30), builder.Order({}), BASE)["scheduling"]
    assert scheduling["provisioningModel"] == "STANDARD"
    assert "preemptible" not in scheduling
    assert scheduling["maxRunDuration"] == {"seconds": str(30 * 60)}
    assert scheduling["instanceTerminationAction"] == "DELETE"


def test_an_image_that_takes_twenty_minutes_is_waited_for_before_its_builder_goes(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
):
    """Each look at the image takes five minutes, and its operation does not end in time."""
    image, minutes = "global/images/own-0123456789", [0.0]
    monkeypatch.setattr(bake, "time", SimpleNamespace(monotonic=lambda: minutes[0] * 60))
    ask, order = platform.call, platform.order
    builders: list[bool] = []

    def call(method: str, path: str, *rest: Any, **more: Any) -> dict[str, Any]:
        if path == image and image in platform.there:
            minutes[0] += 5
            platform.there[image]["status"] = "READY" if minutes[0] >= 20 else "PENDING"
            builders.append(any("/instances/" in one for one in platform.there))
        return ask(method, path, *rest, **more)

    def slow(method: str, path: str, *rest: Any, **more: Any) -> None:
        order(method, path, *rest, **more)
        if path == "global/images":
            raise CannotAsk(0, f"{path}: not done in 600 s")

    platform.call, platform.order = call, slow
    assert made(platform) == "https://x/own-0123456789"
    assert minutes == [20.0] and builders == [True] * 4
    assert list(platform.there) == [image]


def test_a_silent_platform_is_reported_with_its_first_error_and_leftovers(
    platform: Platform,
):
    platform.refused = ("GET zones/europe-west4-a/instances", "DELETE")
    said = log_lines()
    with pytest.raises(CannotAsk, match="no answer"):
        made(platform)
    assert said == [
        "builder bake-own-0123456789: may still exist (no answer); it is deleted 120 minutes after "
        "its start while it runs, and by the next pulumi up"
    ]


def test_a_builder_that_failed_unseen_is_not_continued(platform: Platform):
    platform.there["zones/europe-west4-a/instances/bake-own-0123456789"] = {"status": "RUNNING"}
    platform.report = {"state": "failed packages", "log": "E: no package\n"}
    said = log_lines()
    with pytest.raises(BakeError) as caught:
        made(platform)
    assert "left by an earlier bake, deleted" in said[0] and "bakes from debian-13-1" in said[1]
    assert str(caught.value) == (
        "builder bake-own-0123456789: step packages failed; its last lines:\nE: no package"
    )
    assert platform.there == {}


ZONE = "zones/europe-west4-a"
LABELS = {"component": "image-family", "stack": "dev"}


def leave(platform: Platform, name: str, status: str, image: str | None = None) -> str:
    """A builder that a killed bake of the stack has left, and how far its image has come."""
    path = f"{ZONE}/instances/{name}"
    left = {"name": name, "zone": f"https://x/{ZONE}", "status": status, "labels": LABELS}
    platform.there[path] = left
    if image:
        made = name.removeprefix(recipe.BUILDER)
        labels = {**LABELS, "recipe": baked().hash[: builder.HASH_LABEL]}
        platform.there[f"global/images/{made}"] = {
            **{"name": made, "family": made.rpartition("-")[0], "labels": labels},
            **{"status": image, "selfLink": f"https://x/{made}", "creationTimestamp": "2026"},
        }
    return path


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"state": "done"}, "has already done its work, and is off"),
        ({}, "left by an earlier bake, deleted"),  # off, it tells nothing on some days
    ],
)
def test_a_builder_that_was_left_off_is_continued_or_recreated(platform: Platform, report, said):
    leave(platform, "bake-own-0123456789", "TERMINATED")
    words = log_lines()
    platform.report = report
    ask = platform.order

    def order(method: str, path: str, *rest: Any, **more: Any) -> None:
        if path.endswith("/instances"):
            platform.report = {"state": "done"}
        ask(method, path, *rest, **more)

    platform.order = order
    assert made(platform) == "https://x/own-0123456789"
    assert words[0] == f"builder bake-own-0123456789: {said}"
    assert list(platform.there) == ["global/images/own-0123456789"]


def test_a_builder_whose_image_is_there_is_deleted_and_that_is_said(platform: Platform):
    leave(platform, "bake-own-0123456789", "TERMINATED", "READY")
    words = log_lines()
    assert made(platform) == "https://x/own-0123456789"
    assert words == [
        "image own-0123456789: exists already",
        "builder bake-own-0123456789: left by an earlier bake, deleted",
    ]
    assert list(platform.there) == ["global/images/own-0123456789"]


@pytest.mark.parametrize("family", ["own", "before"])
def test_another_recipes_builder_goes_once_its_image_is_whole(
    platform: Platform, family: str, monkeypatch: pytest.MonkeyPatch
):
    """Its disk is in use until then; and whether the family had another name does not matter."""
    name = f"bake-{family}-fedcba9876"
    leave(platform, name, "TERMINATED", "PENDING")
    looks = iter(["PENDING", "PENDING", "READY"])
    ask = platform.call

    def call(method: str, path: str, *rest: Any, **more: Any) -> dict[str, Any]:
        if path == f"global/images/{family}-fedcba9876":
            platform.there[path]["status"] = next(looks)
        return ask(method, path, *rest, **more)

    platform.call = call
    words = log_lines()
    made(platform)
    assert next(looks, None) is None
    assert words[0] == f"builder {name}: left by an earlier bake, deleted"
    assert not [path for path in platform.there if "/instances/" in path]


def test_what_was_left_goes_with_the_stack_and_that_is_said(platform: Platform):
    leave(platform, "bake-own-0123456789", "TERMINATED", "READY")
    words = log_lines()
    bake.remove("own", "p", {"stack": "dev"})
    assert words == ["builder bake-own-0123456789: left by an earlier bake, deleted"]
    assert platform.there == {}
