"""Examines what an `up` needs: who asks, APIs, permissions, and everything that a preview looks up.

The look-ups are the preview's own (`outlast.settings.lookups.ask`), so that the two never disagree.
Without a stack, they are those of one with the default settings. Nothing is created or changed.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any

from outlast.bucket.transfer import in_parallel
from outlast.cli import endpoint, engine, projects, version
from outlast.cli import stack as stacks
from outlast.cli.errors import EngineError
from outlast.cloud import credentials, deployer, fit, images, refusals
from outlast.cloud.compute import Compute, ComputeError
from outlast.cloud.limits import ACCOUNTS, ROLES
from outlast.cloud.project import Project
from outlast.settings import Settings, SettingsError, checks, lookups, zones

FOUND = 3
"""Exit code if something would keep an `up` from working."""
ZONE = "us-central1-a"
"""Of a stack with the default settings."""
AT_ONCE = 8
TESTED_AT_ONCE = 100
"""Permissions that one call of testIamPermissions takes (Resource Manager documentation)."""


class Verdict(StrEnum):
    """The closed list of how a check ended."""

    OK = "ok"
    WARNING = "warning"
    """It may not work, or could not be found out."""
    PROBLEM = "problem"
    """An `up` would be refused, or create no VM."""


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    verdict: Verdict
    says: str = ""
    """One sentence and what to do; for one that is ok, what was found."""


@dataclass(frozen=True)
class Diagnosis:
    """What `outlast doctor` shows."""

    project: str
    by: str
    """What named the project."""
    stack: str
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        return FOUND if any(one.verdict is Verdict.PROBLEM for one in self.checks) else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "outlast": version.text(),
            "project": self.project,
            "by": self.by,
            "stack": self.stack,
            "checks": [
                {"name": one.name, "verdict": one.verdict, "says": one.says} for one in self.checks
            ],
            "exit_code": self.exit_code,
        }


def examine(stack: str = "", *, project: str = "", zone: str = "") -> Diagnosis:
    """Examines a stack, or the project that `projects.choose` finds.

    Raises UsageError if no project is named, NoStack, EngineError, and
    CloudError if this shell's local cloud is stopped.
    """
    endpoint.check_local_cloud()
    if stack:
        values, secret = _config(stack)
        chosen = projects.Chosen(_project_of(values), f"stack {stack}", stack)
        stacks.take_identity(stack)
    else:
        chosen = projects.choose(project)
        values, secret = {"gcp:project": chosen.project, "gcp:zone": zone or ZONE}, set()
        if chosen.stack:
            stacks.take_identity(chosen.stack)
        else:
            credentials.use_settings({})
    who = _who()
    found = [who]
    settings, refused = _settings(stack, values, secret, chosen.project)
    if refused:
        found.append(Check("settings", Verdict.PROBLEM, refused))
    if who.verdict is Verdict.OK and settings:
        found += _of_cloud(settings)
    return Diagnosis(chosen.project, chosen.by, stack, tuple(found))


# ---------------------------------------------------------------------------------------------
# The stack's settings


def _config(stack: str) -> tuple[dict[str, Any], set[str]]:
    """The stack's settings by full key, without secret values, and which are secret."""
    text = engine.run_engine(["config", "--json", "-s", stack], env=os.environ)
    entries = json.loads(text)
    secret = {key for key, entry in entries.items() if entry.get("secret")}
    return {key: entry.get("value") for key, entry in entries.items() if key not in secret}, secret


def _project_of(values: Mapping[str, Any]) -> str:
    return str(values.get("gcp:project") or os.environ.get("GOOGLE_PROJECT", ""))


def _settings(
    stack: str, values: Mapping[str, Any], secret: set[str], project: str
) -> tuple[Settings | None, str]:
    """The checked settings, and why they are refused: then those of a default stack in the same
    place, if these are not refused too."""
    name = engine.project_name() if stack else "doctor"
    try:
        foundation = str(values.get("outlast:foundation") or "")
        outputs = _outputs(foundation) if foundation else None
        return _checked(values, name, stack or "doctor", secret, outputs), ""
    except (SettingsError, EngineError) as error:
        refused = str(error)
    where = {key: values[key] for key in ("gcp:zone", "gcp:region") if values.get(key)}
    basic = {"gcp:project": project, **(where or {"gcp:zone": ZONE})}
    try:
        return _checked(basic, name, stack or "doctor", set(), None), refused
    except SettingsError:
        return None, refused


def _checked(
    values: Mapping[str, Any],
    project: str,
    stack: str,
    secret: set[str],
    outputs: Mapping[str, Any] | None,
) -> Settings:
    return checks.check(
        values,
        organization="organization",
        project=project,
        stack=stack.rpartition("/")[2],
        environ=os.environ,
        foundation_outputs=outputs,
        secret_keys=secret,
    )


def _outputs(stack: str) -> Mapping[str, Any]:
    return json.loads(engine.run_engine(["stack", "output", "--json", "-s", stack], env=os.environ))


# ---------------------------------------------------------------------------------------------
# The checks


def _who() -> Check:
    from google.auth.exceptions import GoogleAuthError

    try:
        who = credentials.described()
        credentials.token()
    except (GoogleAuthError, OSError) as error:
        return Check(
            *("credentials", Verdict.PROBLEM),
            f"credentials: cannot be used ({credentials.first_line(error)}); run gcloud auth"
            " application-default login, or set GOOGLE_CREDENTIALS to a key's file",
        )
    return Check("credentials", Verdict.OK, who)


def _of_cloud(settings: Settings) -> list[Check]:
    """What the project says, all asked at the same time, in a fixed order."""
    # The preview's questions first: each has its own thread.
    asked = [("preview", lookups.ask(settings)), ("zones", zones.ask(settings))]
    jobs: list[Callable[[], list[Check]]] = [
        *(partial(_api, settings.project, name, call) for name, call in _calls(settings.project)),
        partial(_permissions, settings),
        partial(_bucket, settings),
        partial(_image, settings),
        partial(_counts, settings),
    ]
    found = [check for checks in in_parallel(jobs, AT_ONCE) for check in checks]
    for _, answers in asked:
        for answer in answers():
            verdict = Verdict.PROBLEM if answer.refusal else Verdict.WARNING
            says = answer.refusal or answer.warning
            found.append(Check(answer.about, verdict if says else Verdict.OK, says))
    disabled = any(one.name.startswith("API ") and one.verdict is not Verdict.OK for one in found)
    # What only repeats that an API is disabled says nothing new.
    return [
        one
        for one in found
        if one.name.startswith("API ") or not (disabled and refusals.is_disabled(one.says))
    ]


def _calls(project: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A cheap call of each API that every stack needs."""
    api = Project(project)
    yield "compute.googleapis.com", lambda: Compute(project).call("GET", "")
    yield "iam.googleapis.com", lambda: next(iter(api.accounts()), None)
    yield (
        "cloudresourcemanager.googleapis.com",
        lambda: api.permissions(("resourcemanager.projects.get",)),
    )
    yield "storage.googleapis.com", lambda: next(iter(api.buckets()), None)


def _api(project: str, name: str, call: Callable[[], Any]) -> list[Check]:
    about = f"API {name}"
    try:
        call()
    except ComputeError as error:
        said = str(error)
        if refusals.is_disabled(said):
            enable = f"gcloud services enable {name} --project {project}"
            why = f"{about}: is not enabled in project {project}; enable it: {enable}"
            return [Check(about, Verdict.PROBLEM, why)]
        if error.status == 401:
            why = f"{about}: refuses the credentials ({said}); sign in again"
            return [Check(about, Verdict.PROBLEM, why)]
        if error.status == 404:
            why = (
                f"{about}: project {project} does not exist, or you may not see it; gcloud projects"
                " list shows yours"
            )
            return [Check(about, Verdict.PROBLEM, why)]
        if error.status == 403:
            why = f"{about}: may be enabled, but you may not use it ({said}); see the permissions"
            return [Check(about, Verdict.WARNING, why)]
        return [Check(about, Verdict.WARNING, f"{about}: did not answer ({said}); try again")]
    return [Check(about, Verdict.OK)]


_NOT_NEEDED: Mapping[str, Callable[[Settings], bool]] = {
    "declare the bucket": lambda s: s.bucket_mode == "existing",
    "declare a network": lambda s: not s.network_rules.isolated,
    "declare a subnetwork": lambda s: not s.network_rules.isolated,
    "declare a nat": lambda s: not (s.network_rules.isolated and s.network_rules.nat),
    "declare a firewall rule": lambda s: not s.network_rules.tagged,
    "declare a health check": lambda s: not s.network_rules.checked,
    "declare the role": lambda s: bool(s.leave_role),
    "restore the role": lambda s: bool(s.leave_role),
    "declare the account": lambda s: bool(s.service_account),
    "let the vm read a secret": lambda s: not s.secrets,
}
"""Which steps a stack does not take."""


def _permissions(settings: Settings) -> list[Check]:
    steps = {
        step: names
        for step, names in deployer.STEPS.items()
        if not (step in _NOT_NEEDED and _NOT_NEEDED[step](settings))
    }
    wanted = [name for names in steps.values() for name in names]
    api = Project(settings.project)
    try:
        held: set[str] = set()
        for asked in _batches(wanted):
            held |= api.permissions(asked)
        on_bucket = tuple(n for n in wanted if n.startswith("storage.") and n not in held)
        if on_bucket and api.any_bucket(settings.bucket) is not None:
            # They may be granted on the bucket alone.
            held |= api.bucket_permissions(settings.bucket, on_bucket)
    except ComputeError as error:
        why = f"permissions: not looked up ({error})"
        return [Check("permissions", Verdict.WARNING, why)]
    missing = {
        step: lost for step, names in steps.items() if (lost := [n for n in names if n not in held])
    }
    if not missing:
        return [Check("permissions", Verdict.OK, f"all {len(wanted)} that up and destroy need")]
    role = "grant yourself a role that has them (docs/teams.md#who-outlast-is)"
    return [
        Check(
            *(f"permission to {step}", Verdict.PROBLEM),
            f"permission to {step}: {', '.join(lost)} is missing in project {settings.project};"
            f" {role}",
        )
        for step, lost in missing.items()
    ]


def _batches(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    left = iter(names)
    while batch := tuple(islice(left, TESTED_AT_ONCE)):
        yield batch


@dataclass
class _Heard:
    """Keeps what a look-up warns of."""

    warnings: list[str] = field(default_factory=list)

    def warn(self, msg: str) -> None:
        self.warnings.append(msg)

    def info(self, msg: str) -> None:
        pass


def _bucket(settings: Settings) -> list[Check]:
    heard, about = _Heard(), f"bucket {settings.bucket}"
    try:
        lookups.find_bucket(settings, log=heard, previews=True)
    except SettingsError as error:
        return [Check(about, Verdict.PROBLEM, str(error))]
    return [Check(about, Verdict.WARNING, one) for one in heard.warnings] or [
        Check(about, Verdict.OK)
    ]


def _image(settings: Settings) -> list[Check]:
    """The image that VMs boot from, or that one is baked from."""
    setting, reference = "outlast:image", settings.image
    if settings.recipe:
        setting, reference = "outlast:imageRecipe.base", settings.recipe.base
    about = f"{setting} {reference!r}"
    found = images.resolve(reference, settings.project)
    if isinstance(found, images.Unknown):
        return [Check(about, Verdict.WARNING, f"{about}: not looked up ({found.why})")]
    if isinstance(found, images.ImageMissing):
        return [Check(about, Verdict.PROBLEM, f"{about}: {found.why}")]
    if not found.usable:
        instead = f"; name {found.replacement}" if found.replacement else "; name another"
        why = f"{about}: is {found.state.lower()}, so no VM can boot from it{instead}"
        return [Check(about, Verdict.PROBLEM, why)]
    needs = settings.needs
    if not settings.recipe and (why := fit.refusal(setting, reference, found, needs)):
        return [Check(about, Verdict.PROBLEM, why)]
    return [Check(about, Verdict.OK, found.path)]


def _counts(settings: Settings) -> list[Check]:
    """Whether the project has room for one more service account and one more role."""
    api = Project(settings.project)
    limits = [
        *([] if settings.service_account else [("service accounts", api.accounts, ACCOUNTS)]),
        *([] if settings.leave_role else [("roles", api.roles, ROLES)]),
    ]
    remedies = {
        "service accounts": "set outlast:serviceAccount to an existing one",
        "roles": "use a foundation, whose role all experiments share",
    }
    found = []
    for what, listed, limit in limits:
        about = f"quota of {what}"
        try:
            count = sum(1 for _ in listed())
        except ComputeError as error:
            found.append(Check(about, Verdict.WARNING, f"{about}: not looked up ({error})"))
            continue
        if count >= limit:
            why = (
                f"{about}: project {settings.project} has {count}, and Google's default limit is"
                f" {limit}; outlast audit finds those that no stack owns; or {remedies[what]}, or"
                " ask for more on the page Quotas of the console"
            )
            found.append(Check(about, Verdict.WARNING, why))
        else:
            found.append(Check(about, Verdict.OK, f"{count} of {limit}"))
    return found
