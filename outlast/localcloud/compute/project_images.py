"""The project's own images: declared, or baked from the disk of a VM."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry, State
from outlast.localcloud.compute import rules
from outlast.localcloud.compute.catalogue import Catalogue, Image
from outlast.localcloud.compute.declared_kinds import IMAGE

Bake = Callable[[str, str, Path, bool], Awaitable[None]]
"""Copies the content of a VM's disk: zone, disk, folder, whether the VM may run."""


class ProjectImages:
    """The project's images, which disks may start from."""

    def __init__(self, state: State, catalogue: Catalogue, bake: Bake) -> None:
        self._state = state
        self._table = state.table("compute/declared")
        self._catalogue = catalogue
        self._bake = bake
        for entry in sorted(self.declared(), key=lambda entry: entry["created"]):
            self.offer(entry)

    def declared(self) -> list[Entry]:
        """Every declared image."""
        return [self._table[key] for key in self._table if key.startswith(f"{IMAGE.path}/")]

    def given(self) -> list[Image]:
        """The project's images that exist without a declaration."""
        names = {entry["name"] for entry in self.declared()}
        own = [i for i in self._catalogue.images if i.project == self._catalogue.project]
        return [image for image in own if image.name not in names]

    def find(self, path: str) -> tuple[Image, Entry | None]:
        """The image of a path, of any project, and its declaration, if any; ApiError 404."""
        image = self._catalogue.image(path)
        if image is None:
            raise ApiError(404, f"The resource '{path}' was not found")
        own = image.project == self._catalogue.project
        return image, self._table.get(f"global/images/{image.name}") if own else None

    async def bake(self, name: str, source: str, force: bool) -> None:
        """Copies the content of a VM's disk for the image of this name; does nothing for a declared
        disk."""
        place, _, disk = source.rpartition("/disks/")
        zone = place.rpartition("/")[2]
        if f"zones/{zone}/disks/{disk}" not in self._table:
            await self._bake(zone, disk, self._folder(name), force)

    def offer(self, entry: Entry) -> None:
        """Lets disks start from a declared image, with the baked content or that of its source
        image."""
        body = entry["body"]
        source = self._catalogue.image(str(body.get("sourceImage") or ""))
        baked = self._folder(entry["name"])
        folder = baked if baked.is_dir() else source.folder if source else None
        self._catalogue.offer(
            Image(
                self._catalogue.project,
                body.get("family") or "",
                entry["name"],
                int(body["diskSizeGb"]),
                folder,
                (body.get("deprecated") or {}).get("state") or "ACTIVE",
            )
        )

    def image_size_gb(self, reference: str) -> int:
        """The size in GB of the image that a field names; ApiError if it does not exist."""
        image = self._catalogue.image(reference)
        if image is None:
            raise rules.invalid(
                "resource.sourceImage", reference, "The referenced image resource cannot be found."
            )
        return image.size_gb

    def forget(self, name: str) -> None:
        """Removes a deleted image."""
        self._catalogue.withdraw(name)
        shutil.rmtree(self._folder(name), ignore_errors=True)

    def clear(self) -> None:
        """Removes every declared image."""
        for entry in self.declared():
            self._catalogue.withdraw(entry["name"])
        shutil.rmtree(self._folder(""), ignore_errors=True)

    def _folder(self, name: str) -> Path:
        """Folder of a baked image's content."""
        return self._state.root / "images" / name
