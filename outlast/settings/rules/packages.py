"""Rules for the packages that a VM gets. Imported only for stacks with requirements: what reads
them takes longer to load than all other rules.
"""

from outlast.settings import errors
from outlast.settings.errors import NAMESPACE, SettingsError
from outlast.settings.keys import Keys
from outlast.settings.rules.code import of_checkout
from outlast.spec import bundle as bundles
from outlast.spec import delivery, identity, project, requirements


def requirement_files(name: str) -> dict[str, bytes]:
    """What the user's packages are made of, by names in the bundle. Raises BundleError."""
    place = of_checkout("requirements", name)
    known = place.relative_to(errors.project().resolve()).as_posix()
    try:
        if place.is_file():
            if not bundles.may_leave(place, errors.project()):
                raise bundles.BundleError(
                    f"{name}: is a key, or a file that git ignores, and these never leave your "
                    "machine; name another"
                )
            return _of_file(known)
        files = bundles.source_files(place)
        project.read(known, requirements.Files({f"{known}/{one}": files[one] for one in files}))
        return {f"{bundles.PACKAGE}/{file}": data for file, data in files.items()}
    except requirements.RequirementsError as error:
        raise bundles.BundleError(str(error)) from None


def _of_file(name: str) -> dict[str, bytes]:
    """One requirements file that includes all others, and its constraints."""
    found = project.read(name, _Checkout(errors.project()), alone=True).requirements
    assert found is not None
    files = {bundles.USER_REQUIREMENTS: found.data}
    if found.constraints:
        files[bundles.USER_CONSTRAINTS] = found.constraints_text.encode()
    return files


class _Checkout(requirements.Folder):
    """Files of the checkout that may leave this machine."""

    def read(self, name: str) -> bytes | None:
        path = bundles.inside(self.root, name)
        return (
            None if path is None or not bundles.may_leave(path, self.root) else super().read(name)
        )


def grants(given: Keys, git: delivery.Git | None, email: str) -> tuple[str, ...]:
    """A sentence for each index in Artifact Registry that the user's requirements name, which the
    VMs' service account must be allowed to read; or that only the VM sees what they name."""
    name = given.requirements
    if git is not None:
        return (
            f"{NAMESPACE}:requirements {name}: is read by the VM, at commit {git.commit[:10]}, and"
            " is not checked here; a line that no VM can install ends the run as usage",
        )
    place = of_checkout("requirements", name)
    found = project.read(
        place.relative_to(errors.project().resolve()).as_posix(), _Checkout(errors.project())
    )
    indexes = found.requirements.indexes if found.requirements else ()
    return tuple(
        f"{NAMESPACE}:requirements {name}: its index {index} is read with the VM's own token; allow"
        f" that once, after the first up: {requirements.grant(index, email)}"
        for index in indexes
        if requirements.repository(index)
    )


def digest(given: Keys, git: delivery.Git | None) -> str:
    """The digest of the user's requirements, or their name in the commit."""
    name = given.requirements
    if given.trainer_python:
        raise SettingsError(
            f"{NAMESPACE}:requirements beside {NAMESPACE}:trainerPython: requirements make a new"
            " environment, trainerPython names an existing one; leave out one of them"
        )
    if git is not None:
        return git.requirements
    try:
        return identity.files_digest(requirement_files(name))
    except bundles.BundleError as error:
        raise SettingsError(f"{NAMESPACE}:requirements {error}") from None
