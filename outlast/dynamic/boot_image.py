"""Finds, checks and reports the image that all VMs of a run boot from at one resume, for RunPin."""

from collections.abc import Mapping
from typing import Any

from pulumi.dynamic import CheckFailure

from outlast.base.retry import BRIEF, Trouble
from outlast.cloud import fit, images
from outlast.dynamic.host import failure, say

KEYS = ("owner", "bucket", "prefix", "run", "resume")
"""Inputs that say which run is pinned; if one differs, it is another pin."""

_images: dict[str, images.Image] = {}
"""Images that this process has resolved, so that one command asks once and uses one image."""

Props = Mapping[str, Any]


class NoImage(Exception):
    """No VM of the run can be created from the named image."""


class Unanswered(Exception):
    """The image could not be looked up."""

    def __init__(self, why: str, trouble: Trouble | None) -> None:
        """`trouble`: None if another try would get the same answer."""
        super().__init__(why)
        self.trouble = trouble


def path(props: Props) -> str:
    """The concrete image, not a family, that `image` means now. Raises NoImage if none exists that
    the VMs can use, and Unanswered if the cloud did not answer for a minute.
    """
    return BRIEF(lambda: _fitting("outlast:image", props["image"], props)).path


def failures(olds: Props, news: Props) -> list[CheckFailure]:
    """Why the image that the settings name cannot be used, if the run or the image has changed."""
    if all(olds.get(key) == news[key] for key in (*KEYS, "image")):
        return []
    setting, reference = "outlast:image", news.get("image")
    if not _is_known(news):
        # The image is not baked yet; it is at least as large as its base.
        setting, reference = "outlast:imageRecipe.base", news["boot"]["base"]
    if not reference:
        return []
    try:
        _fitting(setting, reference, news)
    except NoImage as error:
        return [failure("image", str(error))]
    except Unanswered:
        pass  # a preview needs no cloud, and `create` fails without
    return []


def check_kept(olds: Props, news: Props) -> None:
    """Raises NoImage if the VMs that the settings now ask for cannot use the image that the run
    keeps.
    """
    if olds.get("boot") == news["boot"]:
        return
    try:
        _fitting("the run's image", olds["bootImage"], news)
    except Unanswered as error:
        say(str(error))


def report(olds: Props, news: Props, *, fresh: bool, stack: str) -> None:
    """Reports which image a new pin boots from, or that a changed image does not apply yet."""
    before = olds.get("bootImage", "")
    if not _is_known(news):
        return
    if not fresh:
        if olds.get("image") != news["image"]:
            say(
                f"run {news['run']} keeps image {before}; outlast:image {news['image']}"
                f" applies from the next resume: outlast resume {stack}"
            )
        return
    found = _images.get(news["image"])
    now = found.path if found else before
    if now != before:
        say(
            f"run {news['run']} boots from image {now} at resume {int(news['resume'])}; before:"
            f" {before}"
        )


def _is_known(news: Props) -> bool:
    """Whether there is an image to look up: in a preview, an image that the stack still has to bake
    is one of the SDK's placeholders.
    """
    return isinstance(news.get("image"), str) and news["image"] != ""


def _fitting(setting: str, reference: str, props: Props) -> images.Image:
    """The image that a reference means now, if the run's VMs can use it."""
    found = _image(setting, reference, props["project"])
    boot = props["boot"]
    needs = fit.Needs(int(boot["disk_gb"]), int(boot["gpus"]), boot["machine_type"])
    if setting.endswith(".base") and boot["installs_driver"]:
        why = fit.size_refusal(f"image {found.name}", found.size_gb, needs)
    else:
        why = fit.refusal(setting, reference, found, needs)
    if why:
        raise NoImage(why)
    return found


def _image(setting: str, reference: str, project: str) -> images.Image:
    if reference in _images:
        return _images[reference]
    found = images.resolve(reference, project)
    if isinstance(found, images.Unknown):
        raise Unanswered(
            f"{setting} {reference!r}: cannot be looked up now ({found.why}); run"
            " pulumi up again once Compute Engine answers",
            found.trouble,
        )
    if isinstance(found, images.ImageMissing):
        raise NoImage(f"{setting} {reference!r}: {found.why}")
    if not found.usable:
        instead = f"; name {found.replacement} instead" if found.replacement else ""
        raise NoImage(
            f"{setting} {reference!r}: image {found.name} is {found.state.lower()}, no VM can"
            f" boot from it{instead or '; name another'}"
        )
    _images[reference] = found
    return found
