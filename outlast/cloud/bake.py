"""Bakes an image: a temporary VM installs the recipe, and its disk becomes an image of the family.

Every name is derived from the recipe's hash, so the next `up` after a killed bake finds what it
left: it continues with a working builder, makes the image from a finished disk, and deletes
anything else. The builder is a standard VM that runs until a bake stops it, so the platform deletes
an abandoned one, with its disk, at its time limit. Only the insertion of the image changes the
family, in one step; a failure before it does not.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from outlast.cloud import builder, images, recipe
from outlast.cloud.compute import (
    CannotAsk,
    Compute,
    ComputeError,
    OperationFailed,
)

_log = logging.getLogger(__name__)


LEFT = "left by an earlier bake, deleted"
"""Message about a builder."""

KEPT_IMAGES = 1
"""Deprecated images that are always kept, so that you can go back."""

VM_LIMIT_SEC = 600
IMAGE_LIMIT_SEC = 3600
STOP_LIMIT_SEC = 300
SILENT_SEC = 300
"""Seconds that the API may fail to answer during a wait."""

POLL_SEC = (0.2, 5.0)
POLL_GROWTH = 1.3
ALIVE = ("PENDING", "PROVISIONING", "STAGING", "RUNNING", "REPAIRING")

Json = Mapping[str, Any]
T = TypeVar("T")


class BakeError(Exception):
    """A bake failed: a sentence, and the last lines of the failed step."""


cancelled = threading.Event()
"""Set to cancel the bakes of this process; a bake stops at its next check."""


def bake(baked: recipe.Baked, order: builder.Order) -> str:
    """Bakes the recipe's image if needed; returns its self link. The image is then the newest of
    its family.

    Raises BakeError or ComputeError. Then it has deleted what the bake left, unless the platform
    did not answer; in that case the next bake deletes it.
    """
    return _Bake(baked, order).run()


def remove(family: str, project: str, labels: Mapping[str, str]) -> None:
    """Deletes a destroyed stack's images of a family, and leftover builders.

    Images that a template still names, directly or by the family, are kept and reported. Raises
    ComputeError.
    """
    compute = Compute(project)
    for vm in _builders(compute, labels):
        _clear_left(compute, vm)
    named = _named_images(compute)
    for image in _images(compute, family):
        if not _is_of(labels, image):
            continue
        if named & {image["name"], f"family/{family}"}:
            _log.info(f"image {image['name']}: is kept, because a template names it")
            continue
        compute.delete(f"global/images/{image['name']}", limit_sec=IMAGE_LIMIT_SEC)


def has_left(image: str, family: str, project: str, labels: Mapping[str, str]) -> bool:
    """Whether a killed bake of the stack has left something: a builder, or, as the family's newest,
    another image than the self link `image`. Raises ComputeError.
    """
    compute = Compute(project)
    if _builders(compute, labels):
        return True
    newest = compute.find(f"global/images/family/{family}")
    if newest is None:
        return False
    return _is_of(labels, newest) and newest["name"] != image.rpartition("/")[2]


class _Bake:
    """One bake."""

    def __init__(self, baked: recipe.Baked, order: builder.Order) -> None:
        self._baked = baked
        self._recipe = baked.recipe
        self._order = order
        self._compute = Compute(baked.recipe.project, endpoint=order.endpoint)
        self._vm = f"zones/{baked.recipe.zone}/instances/{baked.builder}"
        self._disk = f"zones/{baked.recipe.zone}/disks/{baked.builder}"
        self._image = f"global/images/{baked.image}"
        self._is_ours = False
        """Whether the existing or pending image is this bake's."""

    def run(self) -> str:
        left = None
        for vm in _builders(self._compute, self._order.labels):
            if vm["name"] == self._baked.builder and _zone_of(vm) == self._recipe.zone:
                left = vm
            else:
                _clear_left(self._compute, vm)
        image: Json | None = None
        try:
            image = self._finished_image()
            if image is None:
                self._build()
                image = self._make_image()
            elif left is not None:
                _log.info(f"builder {self._baked.builder}: {LEFT}")
        except BaseException:
            self._abandon()
            raise
        self._clear_builder()
        self._retire_others(image)
        return str(image["selfLink"]).replace("/compute/beta/", "/compute/v1/")

    # The image

    def _finished_image(self) -> Json | None:
        """The image, if an earlier bake has made it; None if there is none to use."""
        found = self._compute.find(self._image)
        if found is None:
            return None
        if found.get("labels", {}).get("recipe") != self._baked.hash[: builder.HASH_LABEL]:
            raise BakeError(
                f"image {self._baked.image}: exists and was not baked by this recipe; delete it,"
                " or name another family in outlast:imageRecipe"
            )
        if found.get("status") == "FAILED":
            self._compute.delete(self._image, limit_sec=IMAGE_LIMIT_SEC)
            return None
        if found.get("status") != "READY":
            self._is_ours = True
            found = self._wait_for_image()
        if (found.get("deprecated") or {}).get("state") not in (None, "ACTIVE"):
            # The recipe is an earlier one again.
            self._order_call("POST", f"{self._image}/deprecate", {"state": "ACTIVE"})
        _log.info(f"image {self._baked.image}: exists already")
        return found

    def _make_image(self) -> Json:
        body = {
            "name": self._baked.image,
            "family": self._recipe.family,
            "description": f"Baked by Outlast from {self._recipe.base}",
            "sourceDisk": f"projects/{self._recipe.project}/{self._disk}",
            "labels": {**builder.labels(self._baked, self._order), **self._base_labels()},
        }
        self._is_ours = True
        try:
            self._order_call("POST", "global/images", body, IMAGE_LIMIT_SEC)
        except OperationFailed as error:
            raise BakeError(f"image {self._baked.image}: could not be made ({error})") from None
        except CannotAsk as error:
            if error.status == 403:
                raise
            _log.info(f"image {self._baked.image}: {error}; checking whether it is being created")
        except ComputeError as error:
            if error.status != 409:
                raise
            self._is_ours = False  # Another bake of the same recipe was faster.
        found = self._wait_for_image()
        _log.info(f"image {self._baked.image}: made, the newest of family {self._recipe.family}")
        return found

    def _wait_for_image(self) -> Json:
        for _ in _polls(IMAGE_LIMIT_SEC):
            found = self._patiently(lambda: self._compute.find(self._image))
            if found is None:
                raise BakeError(f"image {self._baked.image}: does not exist; run pulumi up again")
            if found.get("status") == "READY":
                return found
            if found.get("status") == "FAILED":
                break
        raise BakeError(
            f"image {self._baked.image}: the platform could not create it in"
            f" {IMAGE_LIMIT_SEC // 60} minutes; run pulumi up again"
        )

    def _base_labels(self) -> dict[str, str]:
        """Description of the image: which image the builder booted from, and whether the family is
        known to have no GPU driver.
        """
        disk = self._compute.find(self._disk) or {}
        source = str(disk.get("sourceImage") or "")
        labels = {"base-image": source.rpartition("/")[2]}
        if source and not self._recipe.installs_driver:
            path = source[source.find("projects/") :]
            base = images.resolve(path, self._recipe.project, endpoint=self._order.endpoint)
            if isinstance(base, images.Image) and base.lacks_driver:
                labels[images.DRIVER_LABEL] = images.NO_DRIVER
        return labels

    def _retire_others(self, image: Json) -> None:
        """Deprecates the family's other images, and deletes old ones that no template names."""
        others = [one for one in _images(self._compute, self._recipe.family) if one != image]
        others = [one for one in others if one["name"] != self._baked.image]
        for one in others:
            if (one.get("deprecated") or {}).get("state") in (None, "ACTIVE"):
                body = {"state": "DEPRECATED", "replacement": image["selfLink"]}
                self._order_call("POST", f"global/images/{one['name']}/deprecate", body)
        others.sort(key=lambda one: str(one["creationTimestamp"]), reverse=True)
        named = _named_images(self._compute)
        for one in others[KEPT_IMAGES:]:
            if one["name"] not in named:
                _log.info(f"image {one['name']}: no template names it any more, deleted")
                self._compute.delete(f"global/images/{one['name']}", limit_sec=IMAGE_LIMIT_SEC)

    # The builder

    def _build(self) -> None:
        """Waits until the builder has done its work and is off."""
        found = self._builder()
        if found and not self._is_usable(found):
            _log.info(f"builder {self._baked.builder}: {LEFT}")
            _delete_vm(self._compute, self._recipe.zone, self._baked.builder)
            found = None
        if found is None:
            self._make_builder()
        elif found["status"] in ALIVE:
            _log.info(f"builder {self._baked.builder}: already at work")
        else:
            _log.info(f"builder {self._baked.builder}: has already done its work, and is off")
        self._watch()
        _log.info(f"builder {self._baked.builder}: done, stopping")
        self._turn_off()
        _log.info(f"builder {self._baked.builder}: off")

    def _builder(self) -> Json | None:
        return self._compute.find(self._vm)

    def _is_usable(self, vm: Json) -> bool:
        """Whether an existing builder is at work or done."""
        state = self._guest_attributes().get("state", "")
        return state == "done" or (vm["status"] in ALIVE and not state.startswith("failed"))

    def _make_builder(self) -> None:
        base = images.resolve(
            self._recipe.base, self._recipe.project, endpoint=self._order.endpoint
        )
        refusal = base_refusal(self._recipe.base, base)
        if refusal or not isinstance(base, images.Image):
            raise BakeError(refusal or f"base {self._recipe.base!r}: cannot be looked up")
        body = builder.body(self._baked, self._order, base)
        try:
            self._order_call("POST", f"zones/{self._recipe.zone}/instances", body, VM_LIMIT_SEC)
        except OperationFailed as error:
            raise BakeError(f"builder {self._baked.builder}: not created ({error})") from None
        except ComputeError as error:
            if error.status != 409:
                raise
        _log.info(
            f"builder {self._baked.builder}: bakes from {base.name}, for at most"
            f" {self._recipe.limit_minutes} minutes"
        )

    def _watch(self) -> None:
        """Waits until the builder reports that it is done. Raises BakeError if it fails."""
        said = log = ""
        for _ in _polls(None):
            vm, sent = self._patiently(lambda: (self._builder(), self._guest_attributes()))
            state, log = sent.get("state", ""), sent.get("log", log).rstrip()
            if vm is not None and not state:
                log = self._serial() or log  # No report so far; it may be booting.
            last = f"; its last lines:\n{log}" if log else ""
            if vm is None:
                raise BakeError(
                    f"builder {self._baked.builder}: does not exist any"
                    f" more{f' ({said})' if said else ''}; it had"
                    f" {self._recipe.limit_minutes} minutes; set limitMinutes in"
                    f" outlast:imageRecipe if that is too short{last}"
                )
            if state == "done":
                return
            if state.startswith("failed"):
                step = state.removeprefix("failed ")
                raise BakeError(f"builder {self._baked.builder}: step {step} failed{last}")
            if state != said:
                said, log = state, ""
                _log.info(f"builder {self._baked.builder}: {state}")
            if vm["status"] not in ALIVE:
                raise BakeError(
                    f"builder {self._baked.builder}: was powered off before it had finished"
                    f"{f' ({said})' if said else ''}{last}"
                )

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Repeats a call until it is answered, or for SILENT_SEC. Raises ComputeError."""
        for _ in _polls(SILENT_SEC):
            try:
                return ask()
            except CannotAsk:
                continue
        return ask()

    def _guest_attributes(self) -> dict[str, str]:
        """The builder's guest attributes: `state`, and the `log` of its current step."""
        try:
            answer = self._compute.call(
                "GET", f"{self._vm}/getGuestAttributes?queryPath=outlast%2F"
            )
        except CannotAsk:
            raise
        except ComputeError:  # Some days the platform answers so for a VM that is off.
            return {}
        items = (answer.get("queryValue") or {}).get("items") or []
        return {one["key"]: str(one.get("value") or "") for one in items}

    def _serial(self) -> str:
        try:
            answer = self._compute.call("GET", f"{self._vm}/serialPort")
        except ComputeError:
            return ""
        return "\n".join(str(answer.get("contents") or "").splitlines()[-20:])

    def _turn_off(self) -> None:
        for _ in _polls(STOP_LIMIT_SEC):
            vm = self._patiently(self._builder)
            if vm is None:
                raise BakeError(
                    f"builder {self._baked.builder}: was deleted before its image was created"
                )
            if vm["status"] in ("TERMINATED", "STOPPED"):
                return
            if vm["status"] in ALIVE:
                self._order_call("POST", f"{self._vm}/stop", None, STOP_LIMIT_SEC)
        raise BakeError(f"builder {self._baked.builder}: does not stop; run pulumi up again")

    def _abandon(self) -> None:
        """Deletes everything that a failed bake left, as far as the platform answers."""
        try:
            if self._is_ours:
                self._compute.delete(self._image, limit_sec=IMAGE_LIMIT_SEC)
            self._clear_builder()
        except ComputeError as error:
            _log.info(
                f"builder {self._baked.builder}: may still exist ({error}); it is deleted"
                f" {self._recipe.limit_minutes} minutes after its start while it runs, and by the"
                " next pulumi up"
            )

    def _clear_builder(self) -> None:
        _delete_vm(self._compute, self._recipe.zone, self._baked.builder)
        self._compute.delete(self._disk, limit_sec=VM_LIMIT_SEC)

    # Small things

    def _order_call(
        self, method: str, path: str, body: Json | None, limit_sec: float = VM_LIMIT_SEC
    ) -> None:
        self._compute.order(method, path, body, limit_sec=limit_sec)


def base_refusal(base: str, found: images.Image | images.ImageMissing | images.Unknown) -> str:
    """Why an image cannot be the base of a bake; empty if it can, or if that is unknown."""
    if isinstance(found, images.ImageMissing):
        return f"{recipe.KEY}.base {base!r}: {found.why}"
    if isinstance(found, images.Image) and not found.usable:
        instead = f"; use {found.replacement}" if found.replacement else "; name another base"
        return f"{recipe.KEY}.base {base!r}: is {found.state.lower()}{instead}"
    return ""


def _builders(compute: Compute, labels: Mapping[str, str]) -> list[Json]:
    """The builders of this stack, in any zone and for any family."""
    return [vm for vm in compute.aggregated("instances") if _is_of(labels, vm)]


def _is_of(labels: Mapping[str, str], made: Json) -> bool:
    """Whether a bake of the stack with these labels created it."""
    found = made.get("labels") or {}
    return found.get("component") == builder.COMPONENT and all(
        found.get(key) == labels.get(key) for key in ("project", "stack")
    )


def _images(compute: Compute, family: str) -> list[Json]:
    """The images of a family that Outlast baked."""
    return [
        image
        for image in compute.listed("global/images")
        if image.get("family") == family
        and (image.get("labels") or {}).get("component") == builder.COMPONENT
    ]


def _named_images(compute: Compute) -> set[str]:
    """The images that the project's templates name, as names or `family/NAME`."""
    return {
        source.partition("global/images/")[2]
        for template in compute.aggregated("instanceTemplates")
        for disk in (template.get("properties") or {}).get("disks") or []
        if (source := str((disk.get("initializeParams") or {}).get("sourceImage") or ""))
    }


def _zone_of(vm: Json) -> str:
    return str(vm["zone"]).rpartition("/")[2]


def _clear_left(compute: Compute, vm: Json) -> None:
    """Deletes a builder that no bake continues, once no image is being created from its disk."""
    image = f"global/images/{vm['name'].removeprefix(recipe.BUILDER)}"
    for _ in _polls(IMAGE_LIMIT_SEC):
        if (compute.find(image) or {}).get("status") != "PENDING":
            break
    _log.info(f"builder {vm['name']}: {LEFT}")
    _delete_vm(compute, _zone_of(vm), vm["name"])


def _delete_vm(compute: Compute, zone: str, name: str) -> None:
    compute.delete(f"zones/{zone}/instances/{name}", limit_sec=VM_LIMIT_SEC)


def _polls(limit_sec: float | None) -> Iterator[None]:
    """Waits longer and longer between checks, until the limit. Raises BakeError."""
    end = None if limit_sec is None else time.monotonic() + limit_sec
    wait_sec, longest = POLL_SEC
    while True:
        yield
        if end is not None and time.monotonic() > end:
            return
        if cancelled.wait(wait_sec):
            raise BakeError("bake: was cancelled")
        wait_sec = min(wait_sec * POLL_GROWTH, longest)
