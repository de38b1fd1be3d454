"""Lists of a project that has more than one page."""

from typing import Any

import pytest

from outlast.cloud import bake, builder
from outlast.cloud.compute import Compute

LABELS = {"component": builder.COMPONENT, "project": "outlast", "stack": "dev"}


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Compute:
    """An API with one thing a page; a page may have scopes that hold nothing, as the real one."""

    def call(_: Compute, method: str, path: str, *__: Any, **___: Any) -> dict[str, Any]:
        assert method == "GET"
        kind = path.partition("?")[0].rpartition("/")[2]
        empty = {"zones/a": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}
        if "pageToken=second" not in path:
            return {"items": empty, "nextPageToken": "second"}
        source = "projects/p/global/images/in-use"
        properties = {"disks": [{"initializeParams": {"sourceImage": source}}]}
        one = {"name": "on-page-2", "labels": LABELS, "properties": properties}
        return {"items": {**empty, "zones/b": {kind: [one]}}}

    monkeypatch.setattr(Compute, "call", call)
    return Compute("p")


def test_a_builder_on_the_second_page_is_found(compute: Compute) -> None:
    assert [vm["name"] for vm in bake._builders(compute, LABELS)] == ["on-page-2"]


def test_an_image_that_a_template_on_the_second_page_names_is_in_use(compute: Compute) -> None:
    assert bake._named_images(compute) == {"in-use"}


def test_a_page_is_small_enough_for_the_boot_scripts_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 VMs have 60 MB of them: with 500 in a page, audit had no answer in ten seconds."""
    asked = []

    def call(_: Compute, method: str, path: str, *, timeout_sec: float) -> dict[str, Any]:
        asked.append((path, timeout_sec))
        return {"nextPageToken": "2"} if len(asked) == 1 else {}

    monkeypatch.setattr(Compute, "call", call)
    assert [*Compute("p").aggregated("instances")] == []
    first = "aggregated/instances?maxResults=100"
    assert asked == [(first, 60.0), (f"{first}&pageToken=2", 60.0)]
