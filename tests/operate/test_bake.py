"""A bake's decisions, against a platform that loses answers; the real work is tests/rehearsal's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outlast.operate import bake, images, recipe
from outlast.operate.bake import BakeError
from outlast.operate.compute import CannotAsk, Missing

BASE = images.Image("https://x/debian-13-1", "debian-cloud", "debian-13-1", "debian-13")
ROOT = Path(__file__).parents[2]
SILENT = CannotAsk(503, "no answer")


class Platform:
    """Compute Engine: one builder at most, one image, and what it does not answer.

    `lost` are orders, by their beginning, that it carries out without an answer; `refused` are
    those that it neither answers nor carries out.
    """

    def __init__(self) -> None:
        self.there: dict[str, dict[str, Any]] = {}
        self.told = {"state": "done"}
        self.lost: tuple[str, ...] = ()
        self.refused: tuple[str, ...] = ()
        self.orders: list[str] = []

    def call(self, method: str, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        assert method == "GET"
        self._refuse(f"GET {path}")
        if "getGuestAttributes" in path:
            self._get(path.partition("/getGuest")[0])
            items = [{"key": key, "value": value} for key, value in self.told.items()]
            return {"queryValue": {"items": items}}
        return {} if path.startswith("aggregated/") else self._get(path)

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


def made(platform: Platform, said: list[str] | None = None, **order: Any) -> str:
    given: Mapping[str, Any] = {"labels": {"stack": "dev"}, **order}
    return bake.bake(baked(), bake.Order(ROOT, **given), (said if said is not None else []).append)


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
    built = bake._Bake(baked(), bake.Order(ROOT, {}, **order), print)
    assert built._builder_body(BASE)["networkInterfaces"] == [expected]


def test_an_image_whose_answer_was_lost_is_asked_for(platform: Platform):
    platform.lost = ("POST global/images",)
    said: list[str] = []
    assert made(platform, said) == "https://x/own-0123456789"
    assert list(platform.there) == ["global/images/own-0123456789"]
    assert any("asking whether it is being made" in one for one in said)


def test_an_image_that_was_not_made_leaves_nothing(platform: Platform):
    platform.refused = ("POST global/images",)
    with pytest.raises(BakeError, match="image own-0123456789: is not there; run pulumi up again"):
        made(platform)
    assert platform.there == {}


def test_a_platform_that_falls_silent_is_told_by_the_first_error_and_what_may_be_left(
    platform: Platform,
):
    platform.refused = ("GET zones/europe-west4-a/instances", "DELETE")
    said: list[str] = []
    with pytest.raises(CannotAsk, match="no answer"):
        made(platform, said)
    assert said == [
        "builder bake-own-0123456789: may be left (no answer); it is deleted 120 minutes after its"
        " start while it runs, and by the next pulumi up"
    ]


def test_a_builder_that_failed_for_nobody_is_not_gone_on_with(platform: Platform):
    platform.there["zones/europe-west4-a/instances/bake-own-0123456789"] = {"status": "RUNNING"}
    platform.told = {"state": "failed packages", "log": "E: no package\n"}
    said: list[str] = []
    with pytest.raises(BakeError) as caught:
        made(platform, said)
    assert "left by an earlier bake, deleted" in said[0] and "bakes from debian-13-1" in said[1]
    assert str(caught.value) == (
        "builder bake-own-0123456789: step packages failed; its last lines:\nE: no package"
    )
    assert platform.there == {}
