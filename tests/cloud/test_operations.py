"""Operations of the Compute API, waited for by name."""

from typing import Any

import pytest

from outlast.cloud.compute import Compute


@pytest.mark.parametrize("project", ["acme", "123456789012"])
def test_an_operation_is_waited_for_whether_its_link_has_the_projects_id_or_number(
    monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    calls: list[str] = []
    link = f"https://www.googleapis.com/compute/v1/projects/{project}/zones/z/operations/o"

    def call(_: Compute, method: str, path: str, *__: Any, **___: Any) -> dict[str, Any]:
        calls.append(f"{method} {path}")
        return {"status": "DONE" if path.endswith("/wait") else "RUNNING", "selfLink": link}

    monkeypatch.setattr(Compute, "call", call)
    Compute("acme").order("POST", "zones/z/instances", {}, limit_sec=10)
    assert calls == ["POST zones/z/instances", "POST zones/z/operations/o/wait"]
