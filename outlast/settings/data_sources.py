"""Looks up, before anything is created, whether the data that a stack names can be read: a VM that
may not read it ends its run.

Only data outside of the stack's own bucket is looked up. The caller is not the VM, so that a
refusal of the caller only warns.

Sources: pages "Requester Pays" and "Access control for public data" (Cloud Storage documentation,
read in November 2026).
"""

from collections.abc import Callable, Iterator
from functools import partial

from outlast.bucket.store.gcs import NO_PAYER
from outlast.cloud.compute import ComputeError, Missing
from outlast.cloud.project import Project
from outlast.settings.asked import ANSWER_SEC, Answer, Question, ask_all
from outlast.settings.schema import Settings
from outlast.spec.pin import Pin

SET_POLICY = "storage.buckets.setIamPolicy"


def ask(settings: Settings) -> Callable[[], list[Answer]]:
    """Asks about all paths at the same time; the returned function waits for the answers."""
    return ask_all(_questions(settings))


def _questions(settings: Settings) -> Iterator[Question]:
    for path in settings.data_paths:
        if not path.startswith(f"gs://{settings.bucket}/"):
            yield _about(path), partial(_look, settings, path)
    if settings.data_payer:
        return
    recipe = settings.recipe.data if settings.recipe else ()
    others = [("outlast:imageRecipe", one.url) for one in recipe]
    others += [("outlast:init", Pin.parse(settings.init).path)] if settings.init else []
    for key, path in others:
        if path.startswith("gs://") and not path.startswith(f"gs://{settings.bucket}/"):
            about = f"{key} {path!r}"
            yield about, partial(_look_for_payer, settings, about, path)


def _about(path: str) -> str:
    return f"outlast:dataPaths {path!r}"


def _look(settings: Settings, path: str) -> Answer:
    bucket, _, name = path.removeprefix("gs://").partition("/")
    project = Project(settings.project, timeout_sec=ANSWER_SEC)
    payer = ""
    try:
        try:
            found = project.has_object(bucket, name)
        except ComputeError as error:
            if error.status != 400 or NO_PAYER not in str(error):
                raise
            payer = settings.data_payer
            if not payer:
                return Answer(_payer_missing(_about(path), bucket))
            found = project.has_object(bucket, name, payer)
        if not found:
            return Answer(warning=f"{_about(path)}: there is no such object, and none below it")
        if path not in settings.public_data:
            return Answer(warning=_not_grantable(project, bucket, path, payer))
        return Answer()
    except Missing:
        return Answer(f"{_about(path)}: there is no bucket {bucket}; check the name")
    except ComputeError as error:
        hint = ""
        if payer and error.status == 403:
            hint = f"; paying needs roles/serviceusage.serviceUsageConsumer on project {payer}"
        return Answer(warning=f"{_about(path)}: not looked up ({error}){hint}")


def _look_for_payer(settings: Settings, about: str, path: str) -> Answer:
    """Warns if nothing says who pays. Only warns, as an earlier `up` may have read it already."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    try:
        Project(settings.project, timeout_sec=ANSWER_SEC).has_object(bucket, name)
    except ComputeError as error:
        if error.status == 400 and NO_PAYER in str(error):
            return Answer(warning=_payer_missing(about, bucket))
    return Answer()


def _payer_missing(about: str, bucket: str) -> str:
    return (
        f"{about}: bucket {bucket} lets the requester pay; set outlast:dataPayer to the project"
        " that pays for reading it"
    )


def _not_grantable(project: Project, bucket: str, path: str, payer: str) -> str:
    """Why pulumi up could not give the VM the right to read; empty if it can."""
    if SET_POLICY in project.bucket_permissions(bucket, (SET_POLICY,), payer):
        return ""
    return (
        f"{_about(path)}: you may not change the policy of bucket {bucket}, so that pulumi up"
        f" cannot let the VM read it; if anyone may read it, name it in outlast:publicData,"
        f" otherwise ask its owner for {SET_POLICY}"
    )
