"""Two stacks that share a bucket: what the second one may change of it, and what a review says."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from outlast.cli.review import preview
from tests.engine.conftest import Project

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BUCKET = f"{clouds.PROJECT}-outlast"
DAY_SEC = 86_400


class Stacks:
    """Stacks of the checkout's program, in a cloud whose VMs do nothing."""

    def __init__(
        self,
        parts: engines.Parts,
        cloud: clouds.LocalCloud,
        folder: Path,
        plugin: Path | None,
    ) -> None:
        variables = cloud.variables(parts, folder / "pulumi", os.environ["PATH"], plugin)
        self._project = Project(folder / "project", {**engines.scrubbed(), **variables}, cloud)
        self.cloud, self.folder = cloud, self._project.folder
        self.folder.mkdir()
        definition = yaml.safe_load((engines.project() / "Pulumi.yaml").read_text())
        definition["main"] = "checkout"
        definition["runtime"]["options"]["virtualenv"] = str(Path(parts.python).parents[1])
        (self.folder / "checkout").symlink_to(engines.project(), target_is_directory=True)
        (self.folder / "Pulumi.yaml").write_text(yaml.safe_dump(definition))

    def configure(self, name: str, **values: Any) -> None:
        settings = yaml.safe_load((engines.project() / "Pulumi.dev.yaml").read_text())
        settings["config"] |= {f"outlast:{key}": value for key, value in values.items()}
        settings["config"] |= {"outlast:experiment": name, "outlast:trainer": "dummy"}
        path = self.folder / f"Pulumi.{name}.yaml"
        is_new = not path.exists()
        path.write_text(yaml.safe_dump(settings))
        if is_new:
            self.pulumi("stack", "init", name, "--no-select")

    def pulumi(self, *args: str, fails: bool = False) -> str:
        return self._project.pulumi(*args, fails=fails)

    def up(self, name: str, *, fails: bool = False) -> str:
        return self.pulumi("up", "--yes", "--skip-preview", "-s", name, fails=fails)

    def outlast(self, *args: str) -> str:
        return self._project.outlast(*args)

    def review(self, name: str, *flags: str) -> preview.Review:
        return preview.review(name, flags=flags, env=self._project.env, cwd=self.folder)

    def groups(self) -> list[str]:
        names = self.cloud.audit()["groups"]
        return sorted(name.rpartition("/")[2].rpartition("-")[0] for name in names)

    def bucket(self) -> dict[str, Any]:
        return self.cloud.call("GET", f"/storage/v1/b/{BUCKET}")

    def change_bucket(self, **fields: Any) -> None:
        self.cloud.call("PATCH", f"/storage/v1/b/{BUCKET}", fields)


@pytest.fixture
def stacks(
    parts: engines.Parts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plugin: Path | None,
) -> Iterator[Stacks]:
    cloud = clouds.start(tmp_path / "cloud", parts, guests=False, dies_with_us=True)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)  # HEAD is read from here
    try:
        yield Stacks(parts, cloud, tmp_path, plugin)
    finally:
        cloud.stop()


def test_a_second_stack_leaves_a_shared_bucket_as_it_is(stacks: Stacks):
    stacks.configure("one", versioning=True, softDeleteDays=14)
    stacks.up("one")
    rule = {"action": {"type": "Delete"}, "condition": {"age": 90, "matchesPrefix": ["old/"]}}
    stacks.change_bucket(
        labels={"team": "vision"}, lifecycle={"rule": [rule]}, defaultEventBasedHold=False
    )
    before = stacks.bucket()
    assert before["versioning"]["enabled"]
    assert before["softDeletePolicy"]["retentionDurationSeconds"] == str(14 * DAY_SEC)

    def unchanged(found: dict[str, Any]) -> bool:
        changes = {"updated", "metageneration", "etag"}
        return all(found[key] == value for key, value in before.items() if key not in changes)

    stacks.configure("two")
    first = stacks.review("two")
    assert first.broken == ()
    assert first.warnings == ()
    assert len([line for line in first.storage if line.startswith(f"bucket {BUCKET}")]) == 1
    assert any(
        line.startswith("soft delete: ") and " 14 more days" in line for line in first.storage
    )
    # The bucket has them already; the engine's import knows no labels.
    assert first.changes["updated"] == ("Bucket bucket-bucket (labels)",)
    stacks.up("two")
    assert unchanged(stacks.bucket()), stacks.bucket()

    again = stacks.review("two")
    assert (again.broken, again.changes) == ((), {})
    assert "unchanged" in stacks.pulumi("preview", "--refresh", "--diff", "-s", "two")
    for name in ("one", "two"):
        stacks.up(name)
        assert unchanged(stacks.bucket()), name
        assert stacks.review(name).changes == {}

    # A person changes the bucket by hand.
    stacks.change_bucket(versioning={"enabled": False})
    assert stacks.review("one").changes == {}
    drift = stacks.review("one", "--refresh").changes
    assert "Bucket bucket-bucket (versioning)" in drift["updated"], drift
    looking = ("preview", "--refresh", "--expect-no-changes")
    assert "no changes were expected" in stacks.pulumi(*looking, "-s", "one", fails=True)
    stacks.pulumi("up", "--refresh", "--yes", "--skip-preview", "-s", "one")
    assert unchanged(stacks.bucket())

    # A state that has lost its run and all that depends on it.
    (pin,) = re.findall(r"urn:\S+::\S*RunPin\S*", stacks.pulumi("stack", "-u", "-s", "two"))
    stacks.pulumi("state", "delete", pin, "--target-dependents", "--yes", "-s", "two")
    assert stacks.groups() == ["one", "two"]
    for kind in ("Account", "IAMCustomRole"):
        (urn,) = re.findall(rf"urn:\S+:{kind}::\S*", stacks.pulumi("stack", "-u", "-s", "two"))
        stacks.pulumi("state", "delete", urn, "--target-dependents", "--yes", "-s", "two")
    said = stacks.outlast("destroy", "two", "--message", "gone")
    assert re.search(r"group two-\S+: was missing from the state; deleted", said), said
    assert re.search(r"template \S+: was missing from the state; deleted", said), said
    assert re.search(r"service account outlast-two@\S+: was missing from the state", said), said
    assert re.search(r"role outlast_two_\S+: was missing from the state; deleted", said), said
    assert re.search(r"bindings in gs://\S+: \S+ of outlast-two@", said), said
    assert stacks.groups() == ["one"]
    left = stacks.cloud.audit()
    assert len(left["service_accounts"]) == len(left["roles"]) == 1, left
    assert "missing from the state" not in stacks.outlast("destroy", "one")
    assert stacks.groups() == []
