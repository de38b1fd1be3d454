"""Rules of the code that a VM gets."""

from pathlib import Path

from outlast.settings import errors
from outlast.settings.errors import NAMESPACE, SettingsError, bad
from outlast.settings.keys import Keys
from outlast.spec import bundle as bundles
from outlast.spec import delivery


def delivery_of(given: Keys, cloud: str) -> delivery.Delivery:
    try:
        return delivery.check(
            {
                "delivery": given.delivery,
                "gitUrl": given.git_url,
                "gitCommit": given.git_commit,
                "gitPath": given.git_path,
                "gitRef": given.git_ref,
                "gitSecret": given.git_secret,
                "requirements": given.requirements,
            },
            given.git_host_keys,
            project=cloud,
            source=given.source,
        )
    except delivery.DeliveryError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None


def source_files(folder: str) -> dict[str, bytes]:
    """The command's or the trainer's own files by name. Raises BundleError."""
    return bundles.source_files(of_checkout("source", folder)) if folder else {}


def of_checkout(key: str, name: str) -> Path:
    """A folder of the checkout, or (`requirements`) a file."""
    path = bundles.inside(errors.project(), name)
    of_files = key == "requirements"
    if path is None or bundles.is_hidden(path, errors.project()) or not (of_files or path.is_dir()):
        kind = "file or a folder" if of_files else "folder"
        rule = f"must be a {kind} in the checkout, and none that is hidden"
        raise bad(key, name, rule, "or leave it empty")
    return path
