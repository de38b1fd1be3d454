"""Checks, before anything is created, whether a VM will find the secrets that a stack's settings
name, and a repository that needs none.

The checks run in parallel with the program's other look-ups, for a few seconds at most. A check
without an answer only warns: a preview needs no cloud, and the VM checks again. No secret is read
here.
"""

import functools
import os
from collections.abc import Callable, Mapping

from outlast.cloud import refusals
from outlast.cloud.compute import (
    CannotAsk,
    Compute,
    ComputeError,
    Missing,
)
from outlast.settings.asked import ANSWER_SEC, Answer, Question, ask_all
from outlast.spec import git_host, secrets
from outlast.spec.delivery import Git

ENDPOINT = "https://secretmanager.googleapis.com/v1/"
ENDPOINT_VARIABLE = "GOOGLE_SECRET_MANAGER_CUSTOM_ENDPOINT"


def ask(git: Git | None, named: Mapping[str, str]) -> Callable[[], list[Answer]]:
    """Checks each secret once, and a repository that is read without one. `named`: the secret that
    each setting names. The returned function waits for the answers.
    """
    once = {name: setting for setting, name in named.items()}
    questions: list[Question] = [
        (_about_secret(setting, name), functools.partial(secret, setting, name))
        for name, setting in once.items()
    ]
    if git and not git.secret:
        questions.append((_about_repository(git), functools.partial(repository, git)))
    return ask_all(questions)


def secret(setting: str, full_name: str) -> Answer:
    """Whether the secret that the setting names exists and has an enabled version."""
    project, name, version = secrets.parts(full_name)
    api = Compute(project, endpoint=os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT)
    field = _about_secret(setting, full_name)
    gcloud = f"gcloud secrets {{}} {name} --project {project}"
    new = f"{gcloud.format('versions add')} --data-file FILE"
    try:
        found = api.call("GET", f"secrets/{name}/versions/{version}", timeout_sec=ANSWER_SEC)
    except Missing:
        if not _is_there(api, name):
            create = f"{gcloud.format('create')} --replication-policy automatic --data-file FILE"
            return Answer(f"{field}: there is no such secret; create it: {create}")
        if version == "latest":
            return Answer(f"{field}: has no version, and the VM needs one; add it: {new}")
        listed = gcloud.format("versions list")
        return Answer(f"{field}: has no version {version}; name one that it has: {listed}")
    except CannotAsk as error:
        if refusals.is_disabled(str(error)):
            enable = f"gcloud services enable secretmanager.googleapis.com --project {project}"
            return Answer(
                f"{field}: Secret Manager is not enabled in {project}; enable it: {enable}"
            )
        if error.status == 403:
            return Answer(
                warning=f"{field}: you may not look it up ({error}), and the run ends"
                " if its VM finds none; grant yourself roles/secretmanager.viewer on it to have"
                " it looked up"
            )
        return Answer(warning=f"{field}: not looked up ({error})")
    except ComputeError as error:
        return Answer(warning=f"{field}: not looked up ({error})")
    state = str(found.get("state"))
    if state == "ENABLED":
        return Answer()
    number = str(found.get("name")).rpartition("/")[2]
    how = f"add one: {new}"
    if state == "DISABLED":
        how = f"enable it: gcloud secrets versions enable {number} --secret {name}"
        how += f" --project {project}"
    which = f"its latest version, {number}," if version == "latest" else f"version {number}"
    return Answer(f"{field}: {which} is {state.lower()}, and the VM needs an enabled one; {how}")


def repository(git: Git) -> Answer:
    """Whether the repository may be read without a secret, and has the commit."""
    try:
        git_host.ask(git, answer_sec=ANSWER_SEC)
    except git_host.GitRefused as error:
        return Answer(f"outlast:{error}")
    except git_host.GitUnreachable as error:
        return Answer(warning=f"{_about_repository(git)}: not looked up ({error})")
    return Answer()


def _is_there(api: Compute, name: str) -> bool:
    """Whether the secret without a version exists; true if that is unknown."""
    try:
        return api.find(f"secrets/{name}", timeout_sec=ANSWER_SEC) is not None
    except ComputeError:
        return True


def _about_secret(setting: str, name: str) -> str:
    return f"outlast:{setting} {name.removesuffix('/versions/latest')!r}"


def _about_repository(git: Git) -> str:
    return f"outlast:gitUrl {git.url!r}"
