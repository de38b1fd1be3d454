"""Whether a stack's code can be had, asked before anything is made of it: the secret in Secret
Manager, or where there is none, the repository.

It is asked beside whatever else the program looks up, for some seconds at most. What cannot be
told is no refusal: a preview needs no cloud, and a VM asks again. A secret itself is never read.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from outlast.cloud.compute import (
    CannotAsk,
    Compute,
    ComputeError,
    Missing,
)
from outlast.spec.delivery import Git, secret_parts

ENDPOINT = "https://secretmanager.googleapis.com/v1/"
ENDPOINT_VARIABLE = "GOOGLE_SECRET_MANAGER_CUSTOM_ENDPOINT"
ANSWER_SEC = 10.0


@dataclass(frozen=True)
class Answer:
    """At most one of them is a sentence."""

    refusal: str = ""
    warning: str = ""
    """Nobody could tell."""


def ask(git: Git) -> Callable[[], Answer]:
    """Begins to ask; what is returned waits for the answer."""
    found: list[Answer] = []
    asks = secret if git.secret else repository
    thread = threading.Thread(target=lambda: found.append(asks(git)), daemon=True)
    thread.start()

    def answer() -> Answer:
        thread.join(ANSWER_SEC)
        if found:
            return found[0]
        return Answer(warning=f"{_about(git)}: not looked up (no answer in {ANSWER_SEC:.0f} s)")

    return answer


def secret(git: Git) -> Answer:
    """Whether the secret is there, with an enabled version."""
    project, name, version = secret_parts(git.secret)
    api = Compute(project, endpoint=os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT)
    field = _about(git)
    gcloud = f"gcloud secrets {{}} {name} --project {project}"
    new = f"{gcloud.format('versions add')} --data-file FILE"
    try:
        found = api.call("GET", f"secrets/{name}/versions/{version}", timeout_sec=ANSWER_SEC)
    except Missing:
        if not _is_there(api, name):
            create = f"{gcloud.format('create')} --replication-policy automatic --data-file FILE"
            return Answer(f"{field}: there is no such secret; create it: {create}")
        if version == "latest":
            return Answer(f"{field}: has no version, and a VM reads one; add it: {new}")
        listed = gcloud.format("versions list")
        return Answer(f"{field}: has no version {version}; name one that it has: {listed}")
    except CannotAsk as error:
        if "it is disabled" in str(error):  # so the platform says it of an API
            enable = f"gcloud services enable secretmanager.googleapis.com --project {project}"
            return Answer(
                f"{field}: Secret Manager is not enabled in {project}; enable it: {enable}"
            )
        if error.status == 403:
            return Answer(
                warning=f"{field}: you may not ask whether it is there ({error}), and the run ends"
                " where its VM finds none; grant yourself roles/secretmanager.viewer on it to have"
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
    return Answer(f"{field}: {which} is {state.lower()}, and a VM reads an enabled one; {how}")


def repository(git: Git) -> Answer:
    """Whether the repository may be read without a secret, and has the commit."""
    from outlast.supervisor import git as fetching

    try:
        fetching.ask(git, answer_sec=ANSWER_SEC)
    except fetching.GitRefused as error:
        return Answer(f"outlast:{error}")
    except fetching.GitUnreachable as error:
        return Answer(warning=f"{_about(git)}: not looked up ({error})")
    return Answer()


def _is_there(api: Compute, name: str) -> bool:
    """Whether there is a secret, of which no version was found; true where nobody can tell."""
    try:
        api.call("GET", f"secrets/{name}", timeout_sec=ANSWER_SEC)
    except Missing:
        return False
    except ComputeError:
        pass
    return True


def _about(git: Git) -> str:
    if git.secret:
        return f"outlast:gitSecret {git.secret.removesuffix('/versions/latest')!r}"
    return f"outlast:gitUrl {git.url!r}"
