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
"""Copies what a disk of a VM holds: zone, disk, folder, whether the VM may run."""


class ProjectImages:
    """What disks may start from, besides the images of the catalogue."""

    def __init__(self, state: State, catalogue: Catalogue, bake: Bake) -> None:
        self._state = state
        self._table = state.table("compute/declared")
        self._catalogue = catalogue
        self._bake = bake
        for entry in sorted(self.declared(), key=lambda entry: entry["created"]):
            self.offer(entry)

    def declared(self) -> list[Entry]:
        """Every image that is declared."""
        return [self._table[key] for key in self._table if key.startswith(f"{IMAGE.path}/")]

    def given(self) -> list[Image]:
        """The project's images that are there without having been declared."""
        names = {entry["name"] for entry in self.declared()}
        own = [i for i in self._catalogue.images if i.project == self._catalogue.project]
        return [image for image in own if image.name not in names]

    def find(self, path: str) -> tuple[Image, Entry | None]:
        """The image of a path, of any project, and how it was declared; ApiError 404."""
        image = self._catalogue.image(path)
        if image is None:
            raise ApiError(404, f"The resource '{path}' was not found")
        own = image.project == self._catalogue.project
        return image, self._table.get(f"global/images/{image.name}") if own else None

    async def bake(self, name: str, source: str, force: bool) -> None:
        """Copies what a VM's disk holds, for the image of this name."""
        place, _, disk = source.rpartition("/disks/")
        zone = place.rpartition("/")[2]
        if f"zones/{zone}/disks/{disk}" not in self._table:
            await self._bake(zone, disk, self._folder(name), force)

    def offer(self, entry: Entry) -> None:
        """Lets disks start from a declared image: what was baked, or what its source image has."""
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
        """The size of the image that a field means; ApiError if there is none."""
        image = self._catalogue.image(reference)
        if image is None:
            raise rules.invalid(
                "resource.sourceImage", reference, "The referenced image resource cannot be found."
            )
        return image.size_gb

    def forget(self, name: str) -> None:
        """Takes an image away that is deleted."""
        self._catalogue.withdraw(name)
        shutil.rmtree(self._folder(name), ignore_errors=True)

    def clear(self) -> None:
        """Takes every declared image away."""
        for entry in self.declared():
            self._catalogue.withdraw(entry["name"])
        shutil.rmtree(self._folder(""), ignore_errors=True)

    def _folder(self, name: str) -> Path:
        """Where what an image holds lies, if it was baked."""
        return self._state.root / "images" / name
