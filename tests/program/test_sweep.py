"""What a sweep's shared stack declares, and what its trials use of it."""

from collections import Counter

import pytest

from outlast.settings import lookups
from tests.program.test_program import only, program
from tests.program.test_shared import OUTPUTS, kinds
from tests.settings.test_settings import check, refusal

__all__ = ["program"]

SHARED = {"outlast:part": "sweep", "outlast:experiment": "lr--shared"}
EMAIL = "outlast-lr--shared@acme-research.iam.gserviceaccount.com"
SWEEP = {**OUTPUTS, "part": "sweep", "sweep": "lr", "serviceAccount": EMAIL}
TRIAL = {"outlast:foundation": "lr--shared", "outlast:experiment": f"lr--{check().run}"}


def test_the_shared_stack_has_one_identity_for_all_trials(program):
    recorder = program(**SHARED)
    assert kinds(recorder).isdisjoint({"InstanceTemplate", "InstanceGroupManager", "RunPin"})
    declared = Counter(one.type.rpartition(":")[2] for one in recorder.declared.values())
    assert (declared["Account"], declared["IAMCustomRole"], declared["Bucket"]) == (1, 1, 1)
    bindings = [one for one in recorder.declared.values() if one.type.endswith("BucketIAMMember")]
    folders = {one.inputs["condition"]["description"] for one in bindings}
    assert folders == {
        "Only experiments/lr--",
        "Only data/",
        "Only sweeps/lr/rungs/, sweeps/lr/decisions/",
    }
    waited = {urn.rpartition("::")[2] for urn in only(recorder, "FoundationGuard").dependencies}
    assert {"bucket-bucket", "leave-role", "identity-write", "identity-account"} <= waited
    exports = recorder.exports
    assert exports["sweep"] == "lr" and exports["serviceAccount"].startswith("outlast-lr--shared@")
    assert "FoundationUse" not in kinds(recorder)


def test_a_sweep_of_an_experiment_on_a_foundation_passes_it_on(program, monkeypatch):
    outputs = {**OUTPUTS, "project": "outlast-rehearsal"}
    monkeypatch.setattr(lookups, "read_foundation", lambda name: outputs)
    recorder = program(**SHARED, **{"outlast:foundation": "base"})
    assert kinds(recorder).isdisjoint({"Bucket", "IAMCustomRole", "Network"})
    assert only(recorder, "BucketObject").inputs["name"] == "foundations/outlast-base/lr--shared"
    for key in ("bucket", "network", "subnetwork", "leaveRole", "nat"):
        assert recorder.exports[key] == OUTPUTS[key], key


def test_a_trial_declares_no_identity(program, monkeypatch):
    outputs = {**SWEEP, "project": "outlast-rehearsal"}
    monkeypatch.setattr(lookups, "read_foundation", lambda name: outputs)
    recorder = program(**TRIAL, **{"outlast:run": check().run})
    assert kinds(recorder).isdisjoint(
        {"Account", "BucketIAMMember", "IAMMember", "IAMCustomRole", "Bucket"}
    )
    (account,) = [only(recorder, "InstanceTemplate").inputs["serviceAccount"]]
    assert account["email"] == EMAIL
    assert recorder.exports["serviceAccount"] == EMAIL
    assert recorder.exports["runPath"].startswith(f"experiments/lr--{check().run}/")


def test_a_sweep_has_the_settings_of_its_trials():
    found = check({**SHARED, "outlast:args": '{"epochs": 5}', "outlast:trainer": "digits"})
    assert (found.sweep_name, found.written) == ("lr", "experiments/lr--")
    trial = check(TRIAL, foundation=SWEEP)
    assert (trial.sweep_name, trial.written) == ("", f"experiments/lr--{check().run}/")
    assert trial.shared_account == EMAIL and check().shared_account == ""


@pytest.mark.parametrize(
    ("values", "outputs", "said"),
    [
        (
            {"outlast:experiment": "a--b"},
            None,
            "outlast:experiment 'a--b': two dashes in a row are for the trials of a sweep",
        ),
        (
            {**TRIAL, "outlast:experiment": "other"},
            SWEEP,
            "outlast:foundation 'lr--shared': is the sweep lr, whose account writes to its trials"
            " only; set outlast:foundation to another stack for experiment other",
        ),
        ({**TRIAL, "outlast:experiment": "lr"}, SWEEP, "is the sweep lr, whose account writes"),
        ({**TRIAL, "outlast:experiment": "l--r"}, SWEEP, "is the sweep lr, whose account writes"),
        (
            {**TRIAL, "outlast:args": '{"epochs": 77}'},
            SWEEP,
            f"is the trial of run {check().run}, and the code and settings are now those of run",
        ),
        (TRIAL, OUTPUTS, "two dashes in a row are for the trials of a sweep"),
        ({**TRIAL, "outlast:nat": "true"}, SWEEP, "outlast:nat beside outlast:foundation: is the"),
    ],
)
def test_refused(values, outputs, said):
    assert said in refusal(values, foundation=outputs)
