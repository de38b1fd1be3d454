"""The configuration: what is accepted, and one sentence for everything that is not."""

import json
import re
import subprocess
import sys
import urllib.parse
from dataclasses import MISSING
from datetime import datetime

import pulumi
import pytest
import yaml

from outlast import settings
from outlast.base import retry
from outlast.cloud import compute, project
from outlast.settings import FoundBucket, SettingsError, errors, lookups, sources
from outlast.settings.keys import Keys
from outlast.settings.rules import place
from outlast.settings.rules.packages import requirement_files
from outlast.settings.sources import Answer
from outlast.spec.run_spec import BadSpec, RunSpec, Timeouts, _read_command, argv, texts_of
from tests.program import stack
from tests.stores import FakeClock

REAL = {"gcp:project": "acme-research", "gcp:zone": "europe-west4-a"}


def check(values=None, *, environ=None, name="dev", foundation=None, secret_keys=()):
    return settings.check(
        {**stack.defaults(), **REAL, **(values or {})},
        organization="organization",
        project="outlast",
        stack=name,
        environ=environ or {},
        foundation_outputs=foundation,
        secret_keys=secret_keys,
    )


WRONG = {
    str: ('["x"]', '{"a":1}'),
    int: ("x", "1.5", "true", "[1]", '{"a":1}'),
    float: ("x", "1e3", "nan", "-1", "true", "[1]", '{"a":1}'),
    bool: ("x", "1", "[true]", '{"a":1}'),
    list: ("x", "1", "true", '{"a":1}'),
    dict: ("x", "1", "true", "[1]"),
}
"""Values that are of another type than a key's default, as the engine hands them over."""


def refusal(values=None, **kwargs) -> str:
    with pytest.raises(SettingsError) as caught:
        check(values, **kwargs)
    return str(caught.value)


# -- Pulumi.yaml


def test_every_key_has_a_description_and_a_default_of_its_type():
    for key, entry in settings.declared().items():
        assert re.fullmatch(r"[a-z][a-zA-Z0-9]*", key)
        # With `type` the engine would refuse a value before the program can say what it was.
        assert set(entry) == {"description", "default"}, key
        assert type(entry["default"]) in WRONG, key
        assert len(entry["description"]) > 10, key


def test_every_declared_key_is_read():
    """A key that nothing reads would be a setting without effect."""
    folders = ("outlast/settings", "components")
    files = [file for folder in folders for file in (stack.ROOT / folder).rglob("*.py")]
    read = set(re.findall(r"\b(?:given|config|settings|self)\.(\w+)", "".join(map(text_of, files))))
    read |= set(RunSpec.__dataclass_fields__)
    for name in Keys.model_fields:
        assert name in read, name


def text_of(file):
    return file.read_text()


def test_a_default_on_the_vm_is_that_of_its_setting():
    plain = check().run_spec("")
    shared = set(Keys.model_fields) & set(RunSpec.__dataclass_fields__)
    own = {"args", "bucket", "experiment", "run", "trainer", "resume"}  # which have none there
    assert "checkpoint_every" in shared and "mode" in shared
    for name in shared - own:
        field = RunSpec.__dataclass_fields__[name]
        default = field.default if field.default_factory is MISSING else field.default_factory()
        assert getattr(plain, name) == default, name


def test_every_field_of_the_settings_has_a_value():
    found = check()
    assert all(hasattr(found, name) for name in type(found).model_fields)


def test_the_runtime_is_the_checkouts_own_environment():
    runtime = yaml.safe_load((stack.ROOT / "Pulumi.yaml").read_text())["runtime"]
    assert runtime == {"name": "python", "options": {"virtualenv": ".venv", "toolchain": "pip"}}


# -- Accepted


def test_the_defaults_give_a_whole_stack():
    found = check()
    assert found.project == "acme-research"
    assert (found.zone, found.region) == ("europe-west4-a", "europe-west4")
    assert found.bucket == "acme-research-outlast"
    assert (found.experiment, found.prefix) == ("dev", "experiments/dev")
    assert found.owner == "organization/outlast/dev"
    assert found.boot_disk_gb == 50 and found.spot and found.notice_sec == 120
    assert (found.mode, found.zones, found.gpus, found.advice) == ("survive", (), 0, ())
    assert re.fullmatch("[0-9a-f]{10}", found.run)
    timeouts = json.loads(found.timeouts)
    assert Timeouts.parse(found.timeouts) == Timeouts()
    assert timeouts["keep"] == 0 and timeouts["stall"] == 1800


def test_the_example_stack_is_accepted_with_a_local_cloud():
    found = settings.check(
        stack.of_file("dev"),
        organization="organization",
        project="outlast",
        stack="dev",
        environ=stack.LOCAL_CLOUD,
    )
    timeouts = Timeouts.parse(found.timeouts)
    assert (
        timeouts.notice,
        timeouts.stop,
        timeouts.heartbeat,
        timeouts.failure_grace,
        timeouts.backoff,
    ) == (3, 2, 1, 3, 1)
    assert (found.experiment, found.trainer, found.checkpoint_every) == ("dev", "digits", "2s")
    assert found.project == place.LOCAL_PROJECT


def test_the_zone_of_outlast_goes_before_that_of_gcp():
    assert check({"outlast:zone": "us-east1-b"}).region == "us-east1"


@pytest.mark.parametrize(
    "image",
    [
        "projects/debian-cloud/global/images/family/debian-13",
        "projects/acme-research/global/images/outlast-1",
        "projects/example.com:acme/global/images/outlast-1",
        "https://www.googleapis.com/compute/v1/projects/p/global/images/family/f",
        "https://compute.googleapis.com/compute/beta/projects/p/global/images/i",
        "global/images/i",
        "global/images/family/f",
        "family/f",
        "debian-cloud/debian-13",
        "debian-13",
    ],
)
def test_images(image):
    assert check({"outlast:image": image}).image == image


@pytest.mark.parametrize(
    "bucket",
    ["abc", "a.b", "a_.b", "0runs0", "a" * 63, "1.2.3", ".".join(["a" * 55] * 4)[:222], "my-goog"],
)
def test_bucket_names(bucket):
    assert check({"outlast:bucket": bucket}).bucket == bucket


@pytest.mark.parametrize("url", ["", "https://h", "https://h:8443/x?y", "https://[::1]/"])
def test_webhooks(url):
    assert check({"outlast:webhook": url}).webhook == url


def test_a_wait_may_last_a_day():
    assert (
        json.loads(check({"outlast:iamPropagationSec": "86400"}).timeouts)["iam_propagation"]
        == 86400
    )


@pytest.mark.parametrize("name", ["a", "a1", "a-b", "a" * 40])
def test_experiment_names(name):
    assert check(name=name).experiment == name


def test_labels_are_merged_with_ours():
    found = check({"outlast:labels": '{"team":"vision"}'}).labels
    assert found == {
        "team": "vision",
        "managed-by": "outlast",
        "project": "outlast",
        "stack": "dev",
        "experiment": "dev",
    }


# -- What names the run


def run_of(**args):
    return check({"outlast:args": json.dumps(args)}).run


def test_a_regional_group_is_a_separate_place():
    zones = ["europe-west4-b", "europe-west4-c"]
    found = check({"outlast:zones": json.dumps(zones)})
    assert (found.zone, found.region, found.zones) == ("", "europe-west4", tuple(zones))
    assert found.location == "europe-west4-b,europe-west4-c"
    whole = check({"outlast:region": "us-central1"})
    assert (whole.zone, whole.zones, whole.location) == ("", (), "us-central1")
    assert check().location == "europe-west4-a"


def test_the_engines_region_and_zone_must_agree():
    assert check({"gcp:zone": "europe-west4-a", "gcp:region": "europe-west4"}).zone
    elsewhere = {"gcp:region": "us-central1", "outlast:zone": "europe-west4-a"}
    assert check({**elsewhere, "gcp:zone": ""}).region == "europe-west4"
    assert refusal({**elsewhere, "gcp:zone": "europe-west4-a"}) == (
        "gcp:region 'us-central1': gcp:zone europe-west4-a is in europe-west4; set gcp:region to"
        " europe-west4 or leave it out, or set gcp:zone to a zone of us-central1"
    )
    assert refusal({"gcp:zone": "true", "gcp:region": "europe-west4"}).startswith(
        "gcp:zone 'true': must be a zone such as europe-west4-a; set gcp:zone"
    )
    assert "Google has no region europe-wets4; did you mean europe-west4?; set gcp:region" in (
        refusal({"gcp:region": "europe-wets4"})
    )


def test_a_zone_beside_zones_is_refused():
    zones = '["europe-west4-b","europe-west4-c"]'
    assert "is one zone, beside outlast:zones" in refusal(
        {"outlast:zone": "europe-west4-a", "outlast:zones": zones}
    )
    assert "a group has zones of one region" in refusal(
        {"outlast:region": "us-central1", "outlast:zones": zones}
    )


def test_a_machine_with_gpus_says_so():
    image = {"outlast:image": "projects/acme/global/images/family/with-driver"}
    found = check({"outlast:machineType": "g2-standard-24", "outlast:mode": "dedicated", **image})
    assert (found.gpus, found.spot, found.restarts) == (2, False, True)


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [
        ("acceleratorCount", 0, 16),
        ("localSsd", 0, 32),
        ("bootDiskGb", 10, 65_536),
        ("stopSec", 0, 86_400),
        ("keepVmMinutes", 1, 525_600),
        ("maxRunMinutes", 1, 172_800),
    ],
)
def test_the_bounds_of_numbers_that_a_machine_has(key, least, most):
    # A machine of an unknown family takes whatever it is given.
    new = {"outlast:machineType": "n9-standard-8", "outlast:onEnd": "delete"}
    if key == "acceleratorCount":
        new |= {"outlast:machineType": "n1-standard-4", "outlast:accelerator": "nvidia-tesla-t4"}
    for value in (least, most):
        if key != "acceleratorCount":  # of which a T4 takes neither
            check({**new, f"outlast:{key}": str(value)})
    for value in (least - 1, most + 1):
        assert f"outlast:{key} '{value}': must be a whole number from {least}" in refusal(
            {**new, f"outlast:{key}": str(value)}
        )


@pytest.mark.parametrize(
    ("given", "stop"),
    [
        ({}, 30),
        ({"mode": "dedicated"}, 90),
        ({"provisioning": "standard"}, 90),
        ({"stopSec": 7}, 7),
    ],
)
def test_how_long_a_system_has_to_go_down(given, stop):
    values = {f"outlast:{key}": str(value) for key, value in given.items()}
    assert json.loads(check(values).timeouts)["stop"] == stop


def test_a_kept_vm_stays_for_its_minutes():
    assert json.loads(check().timeouts)["keep"] == 0
    assert json.loads(check({"outlast:onEnd": "keep"}).timeouts)["keep"] == 3600
    kept = check({"outlast:onEnd": "keep", "outlast:keepVmMinutes": "5"})
    within = {"outlast:onEnd": "keep", "outlast:keepVmMinutes": "5", "outlast:maxRunMinutes": "6"}
    assert json.loads(check(within).timeouts)["keep"] == 300
    assert "keepVmMinutes 5: is not below outlast:maxRunMinutes 5, and no VM outlives" in refusal(
        {**within, "outlast:maxRunMinutes": "5"}
    )
    check({**within, "outlast:onEnd": "delete", "outlast:maxRunMinutes": "5"})
    assert json.loads(kept.timeouts)["keep"] == 300


def test_a_hyperparameter_is_another_run():
    assert run_of(epochs=3) != run_of(epochs=4)


def test_a_default_written_out_is_the_same_run():
    from outlast import trainers

    epochs = trainers.load("digits").parser().get_default("epochs")
    assert run_of(epochs=epochs) == run_of() == run_of(epochs=str(epochs))


@pytest.mark.parametrize(
    "args",
    [
        {"shift": True, "epochs": 3, "learning-rate": 1e-5},
        {"shift": "true", "hidden": "64,32"},
        {"shift": False, "seed": -1},
        {"shift": "false", "name": "True"},
    ],
)
def test_the_program_checks_the_words_that_the_vm_gives_its_trainer(args):
    spec = RunSpec(
        bucket="b", prefix="p", run="r", resume=0, placement=0, owner="o", trainer="t",
        deadline=datetime.max,
        args=texts_of(args),
    )  # fmt: skip
    assert argv(texts_of(args)) == argv(spec.args)


FRAMEWORK_ARGS = {
    "census": {"cv-iterations": 7},
    "torch_cnn": {"batch-size": 64},
    "keras_mlp": {"hidden": "64,32"},
    "jax_mlp": {"hidden": "64,32"},
}


@pytest.mark.parametrize("trainer", FRAMEWORK_ARGS)
def test_a_frameworks_trainer_is_named_where_the_framework_is_not_installed(trainer):
    """A preview runs on a machine that only declares; the parser tells which run it is."""

    def run(args):
        return check({"outlast:trainer": trainer, "outlast:args": json.dumps(args)}).run

    code = (
        "import sys\n"
        "absent = ['xgboost', 'torch', 'keras', 'jax', 'sklearn', 'numpy']\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from tests.settings import test_settings as tests\n"
        "print(tests.check({'outlast:trainer': sys.argv[1], 'outlast:args': sys.argv[2]}).run)\n"
    )
    args = FRAMEWORK_ARGS[trainer]
    argv = [sys.executable, "-c", code, trainer, json.dumps(args)]
    done = subprocess.run(argv, cwd=stack.ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{run(args)}\n", done.stderr
    assert run(args) != run({})


def test_a_switch_that_is_off_is_the_same_run_as_none():
    assert run_of(epochs="false") == run_of(epochs=False) == run_of()


SWEEP = {"name": "lr", "metric": "accuracy", "goal": "max", "rule": "halving", "minStep": 10}


def test_a_sweep_reaches_the_vm_and_changes_no_name():
    """Rules say when a run ends, not what it computes."""
    alone, trial = check(), check({"outlast:sweep": json.dumps(SWEEP)})
    other = check({"outlast:sweep": json.dumps({**SWEEP, "rule": "median", "eta": 2})})
    assert alone.run == trial.run == other.run
    assert (alone.sweep_rules, alone.run_spec("").sweep_rules) == (None, None)
    rules = trial.run_spec("").sweep_rules
    assert rules is not None and rules.as_setting() == {**SWEEP, "eta": 4, "startup": 0}


def test_a_rule_that_can_stop_no_command_is_advice():
    command = {"outlast:command": "python train.py"}
    (said,) = [
        one
        for one in check({**command, "outlast:sweep": json.dumps(SWEEP)}).advice
        if "outlast:sweep" in one
    ]
    assert said.startswith("outlast:sweep.rule halving beside outlast:command: a command logs no")
    quiet = check({**command, "outlast:sweep": json.dumps({**SWEEP, "rule": "none"})})
    assert not any("outlast:sweep" in one for one in quiet.advice)


def test_infrastructure_is_the_same_run():
    changes = {
        "outlast:machineType": "n2-standard-8",
        "outlast:zone": "us-east1-b",
        "outlast:provisioning": "standard",
        "outlast:image": "projects/p/global/images/i",
        "outlast:maxRunMinutes": "5",
        "outlast:checkpointEvery": "200",
        "outlast:resume": "1",
        "outlast:labels": '{"team":"vision"}',
        "outlast:retriesFailures": "2",
        "outlast:keepEverySteps": "500",
        "outlast:trainerPython": "/opt/conda/bin/python",
        "outlast:trainerUser": "own",
        "outlast:processes": "2",
        "outlast:sweep": json.dumps(SWEEP),
    }
    assert check(changes, name="other").run == check().run


DATA = "outlast:args", "outlast:dataPaths"


@pytest.mark.parametrize(
    ("path", "listed"),
    [
        ("gs://acme-research-outlast/data/digits", []),
        ("gs://acme-research-outlast/experiments/dev/made/rows.csv", []),
        ("gs://b/digits", ["gs://b/digits"]),
        ("gs://b/digits/train.csv", ["gs://b/digits"]),
        ("gs://b/digits/train.csv", ["gs://b/digits/"]),
        ("gs://b/digits", ["gs://b/digits/"]),
    ],
)
def test_data_in_a_bucket_that_the_vm_may_read(path, listed):
    found = check(dict(zip(DATA, [json.dumps({"data": path}), json.dumps(listed)], strict=True)))
    assert found.args["data"] == path and found.reads == tuple(listed)
    assert found.run != check().run


def test_a_neighbour_of_a_data_path_is_not_readable():
    given = [json.dumps({"eval-data": "gs://b/digits-2"}), '["gs://b/digits"]']
    assert "add it, or a folder above it, to outlast:dataPaths" in refusal(
        dict(zip(DATA, given, strict=True))
    )


def test_too_many_data_paths():
    many = json.dumps([f"gs://b/{number}" for number in range(17)])
    assert "17 paths" in refusal({"outlast:dataPaths": many})


def test_the_results_other_destination_is_not_part_of_the_identity():
    out = "gs://acme-research-outlast/experiments/dev/models/first"
    found = check({"outlast:args": json.dumps({"model-output-path": out})})
    assert found.run == check().run
    into_a_run = f"gs://acme-research-outlast/experiments/dev/{found.run}/model"
    assert "not into a run's folder" in refusal(
        {"outlast:args": json.dumps({"model-output-path": into_a_run})}
    )


def test_another_runs_checkpoint_is_part_of_the_identity_and_readable():
    pin = "gs://b/experiments/e/0123456789/t000001/s000000000010-0a/#" + 64 * "a"
    found = check({"outlast:init": pin})
    assert found.run != check().run and found.init == pin
    assert found.reads == ("gs://b/experiments/e/0123456789/t000001/s000000000010-0a/",)
    assert found.run != check({"outlast:init": pin[:-1] + "b"}).run
    own = pin.replace("gs://b/experiments/e/", "gs://acme-research-outlast/experiments/dev/")
    assert check({"outlast:init": own}).reads == ()


def test_a_rerun_is_another_run_and_a_pin_is_that_run():
    assert check({"outlast:rerun": "1"}).run != check().run
    assert check({"outlast:run": "0123456789", "outlast:rerun": "1"}).run == "0123456789"


# -- Refused


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "machinetype",
            "x",
            "outlast:machinetype: is not a setting of Outlast; did you mean machine",
        ),
        ("trainerr", "x", "did you mean trainer?"),
        ("qqqqqq", "x", "docs/configuration.md lists them"),
        ("trainer", "digitz", "outlast:trainer 'digitz': is not a trainer; did you mean digits?"),
        ("trainer", "qqqq", "known are census, digits, dummy, jax_mlp, keras_mlp, torch_cnn"),
        ("trainer", "flags", "is not a trainer"),
        ("trainer", "", "is not a trainer"),
        (
            "args",
            '{"epoch":5}',
            "args epoch: is not a flag of trainer digits; did you mean epochs?",
        ),
        ("args", '{"qqqqqq":5}', "its flags are"),
        ("args", '{"epochs":-1}', "epochs"),
        ("args", '{"epochs":0}', "epochs"),
        ("args", '{"epochs":"many"}', "epochs"),
        ("args", '{"epochs":[1]}', "args.epochs [1]: must be a number, a text or true or false"),
        ("args", '{"epochs":null}', "args.epochs None: must be"),
        ("args", '{"--epochs":1}', "write a flag in lower case, without leading dashes"),
        (
            "args",
            '{"run-dir":"x"}',
            "args run-dir: is not a hyperparameter; a VM has its own folder",
        ),
        (
            "args",
            '{"data":"x.csv"}',
            "args data 'x.csv': a VM cannot read files of this machine; copy",
        ),
        (
            "args",
            '{"eval-data":"/x"}',
            "args eval-data '/x': a VM cannot read files of this machine",
        ),
        ("args", '{"data":"gs://b"}', "args.data 'gs://b': must be gs://BUCKET/PATH"),
        ("args", '{"data":"gs://b/../x"}', "args.data 'gs://b/../x': must be gs://BUCKET/PATH"),
        ("args", '{"data":"gs://b/x"}', "'gs://b/x': the VM may not read it; add it, or a folder"),
        (
            "args",
            '{"model-output-path":"gs://b/x"}',
            "args model-output-path 'gs://b/x': the VM writes only below gs://acme-research-outlast/",
        ),
        ("args", '{"model-output-path":"out"}', "model-output-path 'out': the VM writes only"),
        ("dataPaths", '["x"]', "dataPaths 'x': must be gs://BUCKET/PATH, an object or a folder"),
        ("dataPaths", "x", "dataPaths 'x': must be a list"),
        (
            "dataPaths",
            '["gs://b/x/*"]',
            "must not contain wildcards; a folder means everything below it",
        ),
        ("onNewRun", "maybe", "onNewRun 'maybe': must be refuse or replace"),
        ("update", "later", "update 'later': must be opportunistic or now"),
        ("init", "gs://b/r/", "init 'gs://b/r/': must be a run's checkpoint in a bucket with its"),
        ("init", f"t000001/s000000000001-0/#{64 * 'a'}", "must be a run's checkpoint in a bucket"),
        ("args", '{"epochs":true}', "epochs: expected one argument"),
        ("args", '{"epochs":"true"}', "epochs: expected one argument"),
        ("args", '{"checkpoint-every":"2s"}', "set outlast:checkpointEvery"),
        ("args", "[1]", "outlast:args '[1]': must be an object"),
        ("args", "{", "must be an object"),
        ("experiment", "Dev", "outlast:experiment 'Dev': must have 1 to 40 lower-case"),
        ("experiment", "a" * 41, "must have 1 to 40"),
        ("experiment", "a-", "not end in a dash"),
        ("experiment", "1a", "begin with a letter"),
        ("maxRunMinutes", "0", "outlast:maxRunMinutes '0': must be a whole number from 1 to"),
        ("maxRunMinutes", "172801", "from 1 to 172800"),
        ("maxStallMinutes", "0", "from 1 to 525600"),
        ("maxStallMinutes", "525601", "from 1 to 525600"),
        ("resume", "-1", "a whole number from 0 to 9999"),
        ("resume", "1.5", "a whole number"),
        ("rerun", "-1", "0 or more"),
        ("retriesFailures", "x", "0 or more"),
        ("keepEverySteps", "-1", "0 or more"),
        ("processes", "0", "outlast:processes '0': must be a whole number from 1 to 256"),
        ("trainerPython", "python3", "outlast:trainerPython 'python3': must be an absolute path"),
        ("bootDiskGb", "5", "from 10 to"),
        ("provisioning", "maybe", "outlast:provisioning 'maybe': must be spot or standard; set"),
        (
            "provisioning",
            "flex-start",
            "a VM that is lost is not recreated, and the run would stop",
        ),
        ("mode", "brisk", "outlast:mode 'brisk': must be survive, burst or dedicated"),
        ("machineTypes", '["zones/x"]', "outlast:machineTypes 'zones/x': must be a machine type's"),
        ("machineTypes", '["n2-standard-4"]', "a zonal group can have only one machine type"),
        ("accelerator", "nvidia-tesla-t4", "e2-standard-2 takes no GPU, only N1 machines do"),
        ("localSsd", "2", "outlast:localSsd 2: e2-standard-2 takes none; leave it out"),
        ("minCpuPlatform", "Intel 486", "e2-standard-2 has only its own"),
        ("zones", '["europe-west4-a"]', "must be two zones or more, each once; set outlast:zones,"),
        (
            "zones",
            '["europe-west4-a","us-central1-b"]',
            "these are in europe-west4 and us-central1",
        ),
        ("zones", '["here"]', "outlast:zones 'here': must be zones such as europe-west4-a"),
        ("region", "europe", "outlast:region 'europe': must be a region such as europe-west4"),
        ("onEnd", "stay", "outlast:onEnd 'stay': must be delete or keep"),
        ("keepVmMinutes", "0", "outlast:keepVmMinutes '0': must be a whole number from 1"),
        (
            "allowUnlisted",
            '["zones/z"]',
            "outlast:allowUnlisted 'zones/z': must be a region, a zone or a",
        ),
        ("checkpointEvery", "2 s", "must be auto, seconds such as 30s, or steps such as 200"),
        ("run", "0123", "must be a run's ten digits, 0-9 and a-f"),
        ("zone", "europe", "must be a zone such as europe-west4-a"),
        ("machineType", "zones/z/machineTypes/m", "bare name"),
        ("machineType", "n2standard4", "must be a family and a size, such as e2-standard-2; did"),
        ("externalIp", "none", "must be true or false; set outlast:externalIp or leave it empty"),
        ("healthLimitSec", "60", "healthLimitSec 60 beside outlast:health off: nothing checks"),
        ("bootDiskType", "", "bare name"),
        ("image", "", "must name an image"),
        ("image", "../../x", "outlast:image '../../x': must name an image or an image family"),
        ("image", "projects/p/images/i", "must name an image"),
        ("image", "projects/p/global/images/", "must name an image"),
        ("image", "global/images/family/Debian", "must name an image"),
        ("image", "p/global/images/i", "must name an image"),
        ("bucket", "Bucket", "must have 3 characters or more, lower-case letters"),
        ("bucket", "gs://b", "must be a bucket's bare name, without gs:// and without a path"),
        ("bucket", "a..b", "no two dots in a row"),
        ("bucket", "a.-b", "no dash beside a dot"),
        ("bucket", "a-.b", "no dash beside a dot"),
        ("bucket", "-ab", "the first and the last a letter or digit"),
        ("bucket", "ab.", "the first and the last a letter or digit"),
        ("bucket", "ab", "must have 3 characters or more"),
        ("bucket", "a" * 64, "must have at most 63 characters"),
        ("bucket", f"{64 * 'a'}.b", "and 63 between two dots"),
        ("bucket", ".".join(["a" * 45] * 5), "with dots 222"),
        ("bucket", "192.168.5.4", "must not look like an IP address"),
        ("bucket", "goog-runs", "must not begin with goog"),
        ("bucket", "my-google-runs", "or contain google"),
        ("bucket", "my-g00gle-runs", "or contain google"),
        ("noticeSec", "60", "must be 120 or 0"),
        ("noticeSec", "86401", "from 0 to 86400"),
        ("heartbeatSec", "0", "from 1 to 86400"),
        (
            "heartbeatSec",
            "99999999999",
            "outlast:heartbeatSec '99999999999': must be a whole number",
        ),
        ("failureGraceSec", "86401", "outlast:failureGraceSec '86401': must be a whole"),
        ("backoffSec", "86401", "from 1 to 86400"),
        ("iamPropagationSec", "86401", "from 0 to 86400"),
        ("successorSilenceSec", "86401", "from 1 to 86400"),
        ("stopSec", "86401", "outlast:stopSec '86401': must be a whole number from 0 to 86400"),
        ("webhook", "http://h/", "must be an https address"),
        ("webhook", "https://", "must be an https address"),
        ("webhook", "https://[x", "outlast:webhook 'https://[x': must be an https address"),
        ("webhook", "https://h:99999/", "must be an https address"),
        (
            "webhook",
            "https://me:pw@h/x",
            "outlast:webhook 'https://…@h/x': must not contain a user or",
        ),
        ("webhook", "https://me:pw@h:0/x", "outlast:webhook 'https://…@h:0/x': must be an https"),
        ("sweep", '{"name":"Lr"}', "outlast:sweep.rule '': must be none or median or halving"),
        ("sweep", json.dumps({**SWEEP, "name": "Lr"}), "outlast:sweep.name 'Lr': must have 1 to"),
        ("sweep", json.dumps({**SWEEP, "eat": 3}), "outlast:sweep.eat: is not known; did you mean"),
        ("labels", '{"Team":"x"}', "a key has at most 63 lower-case"),
        ("labels", '{"team":"Vision"}', "labels.team 'Vision': a value is a text of at most 63"),
        ("labels", '{"team":5}', "labels.team 5: must be a text, in quotes; set outlast:labels.te"),
        ("labels", '{"stack":"x"}', "labels stack: is set by Outlast itself"),
        ("labels", json.dumps({f"k{n}": "" for n in range(60)}), "at most 59 are allowed"),
    ],
)
def test_refused(key, value, words):
    found = refusal({f"outlast:{key}": value})
    assert words in found
    assert found.startswith("outlast:") and "\n" not in found
    assert "; " in found or "?" in found  # it says what to do


@pytest.mark.parametrize("key", settings.declared())
def test_a_value_of_another_type_is_one_sentence_with_key_value_and_rule(key):
    for value in WRONG[type(settings.declared()[key]["default"])]:
        if (key, value) == ("command", '["x"]'):
            continue  # the one text that may be a list
        found = refusal({f"outlast:{key}": value})
        assert found.startswith(f"outlast:{key} {value!r}: must be "), found
        assert f"; set outlast:{key}" in found and "\n" not in found


@pytest.mark.parametrize("key", ["zones", "args", "image"])
def test_a_value_that_is_nested_too_deeply_is_a_sentence(key):
    assert refusal({f"outlast:{key}": "[" * 100_000}).startswith(f"outlast:{key} '[[[")


def test_a_stack_name_that_cannot_name_an_experiment_is_refused():
    assert "(the stack's name)" in refusal(name="My.Stack")


def test_no_project_is_a_sentence():
    assert refusal({"gcp:project": ""}).startswith("gcp:project: is not set; run pulumi config")


@pytest.mark.parametrize(
    "project", ["Acme Research", "acme_research", "https://acme", "123456789012"]
)
def test_a_project_is_named_by_its_id(project):
    found = refusal({"gcp:project": project})
    assert found.startswith(f"gcp:project {project!r}: must be a project's id such as")


def test_a_mistyped_field_of_a_command_is_advice():
    found = check(command(command="train {chekpoint} > {chekpoint}/log"))
    said = "outlast:command {chekpoint}: is left as it is; did you mean {checkpoint}?"
    assert found.advice == (said,)
    assert check(command(command='["echo", "{result}", "{}"]')).advice == ()


def test_no_zone_anywhere_is_a_sentence():
    assert "or set gcp:zone" in refusal({"gcp:zone": ""})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"},
        {"GOOGLE_COMPUTE_CUSTOM_ENDPOINT": "http://127.0.0.1:1/compute/beta/"},
        {**stack.LOCAL_CLOUD, "STORAGE_EMULATOR_HOST": "https://storage.example.com"},
        {**stack.LOCAL_CLOUD, "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": "http://127.0.0.1.example.com/"},
        {**stack.LOCAL_CLOUD, "STORAGE_EMULATOR_HOST": "http://[::1"},
    ],
)
def test_the_local_clouds_project_needs_a_local_cloud(environ):
    found = refusal({"gcp:project": "outlast-rehearsal"}, environ=environ)
    assert "no local cloud is set in this shell; run outlast cloud start" in found


@pytest.mark.parametrize("host", ["http://localhost:1", "127.0.0.1:1", "http://[::1]:1"])
def test_loopback_is_a_local_cloud(host):
    environ = {**stack.LOCAL_CLOUD, "STORAGE_EMULATOR_HOST": host}
    assert check({"gcp:project": "outlast-rehearsal"}, environ=environ)


def test_refusals_are_what_the_engine_prints_without_a_traceback():
    assert issubclass(SettingsError, pulumi.RunError)


# -- The bucket's look-up


HERE = {"gcp:zone": "europe-west4-a"}


def a_bucket(labels, location="EUROPE-WEST4", *, uniform=True, days=0, versions=False, **features):
    """A bucket as Google's API answers it (its JSON API, "Buckets: get")."""
    return {
        "name": "acme-research-outlast",
        "labels": labels,
        "location": location,
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": uniform}},
        "softDeletePolicy": {"retentionDurationSeconds": str(days * 86_400)},
        **({"versioning": {"enabled": True}} if versions else {}),
        **features,
    }


OURS = {"managed-by": "outlast", "more": "x"}
BOTH = lookups.PROTECTION


@pytest.fixture
def bucket_answer(monkeypatch):
    """Sets what the look-up of the bucket answers, and the buckets that the project has."""

    def answer(found, listed=("acme-research-outlast",)):
        def ask(method, url, body=None, **kwargs):
            assert method == "GET"
            address = urllib.parse.urlsplit(url)
            query = dict(urllib.parse.parse_qsl(address.query))
            if isinstance(found, Exception):
                raise found
            if address.path == "/storage/v1/b/acme-research-outlast":
                if found is None:
                    raise compute.Missing(404, "no such bucket")
                return found
            assert address.path == "/storage/v1/b" and query["project"] == "acme-research"
            if isinstance(listed, Exception):
                raise listed
            names = [name for name in listed if name.startswith(query["prefix"])]
            return {"items": [{**found, "name": name} for name in names if found]}

        monkeypatch.setattr(project, "ask_google", ask)

    return answer


def test_a_bucket_with_our_label_is_adopted(bucket_answer):
    bucket_answer(a_bucket(OURS))
    assert lookups.find_bucket(check(HERE)) == FoundBucket("europe-west4", adopt=True)


@pytest.mark.parametrize(
    "listed", [(), ("acme-research-outlast-2",)], ids=["no bucket", "one of a longer name"]
)
def test_a_bucket_of_another_project_is_refused_whatever_its_label(bucket_answer, listed):
    bucket_answer(a_bucket(OURS), listed)
    with pytest.raises(SettingsError) as refused:
        lookups.find_bucket(check(HERE))
    assert str(refused.value) == (
        "outlast:bucket 'acme-research-outlast': exists and is not in project acme-research; set"
        " outlast:bucket to another name, or outlast:bucketMode to existing if you trust its owner"
    )


def test_a_bucket_that_may_be_a_strangers_is_refused(bucket_answer):
    bucket_answer(a_bucket(OURS), compute.CannotAsk(403, "storage.buckets.list"))
    with pytest.raises(
        SettingsError, match=r"grant storage\.buckets\.list, or set outlast:bucketMo"
    ):
        lookups.find_bucket(check(HERE))


@pytest.mark.parametrize(("listed", "said"), [((), 1), (("acme-research-outlast",), 0), (None, 0)])
def test_an_existing_bucket_of_another_project_is_said(bucket_answer, monkeypatch, listed, said):
    warned = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    refused = compute.CannotAsk(403, "no")
    bucket_answer(a_bucket({}), refused if listed is None else listed)
    found = lookups.find_bucket(check({**HERE, "outlast:bucketMode": "existing"}))
    assert found == FoundBucket("europe-west4")
    assert len(warned) == said
    assert all("is in another project than acme-research" in line for line in warned)


@pytest.mark.parametrize(
    ("has", "asked", "left", "said"),
    [
        ({"days": 14, "versions": True}, {}, BOTH, "soft delete of 14 days and object versions"),
        ({"days": 14}, {"softDeleteDays": 7}, BOTH, "keeps its soft delete of 14 days, which"),
        ({"days": 7}, {"softDeleteDays": 14}, ("versioning",), ""),
        ({"days": 7, "versions": True}, {"softDeleteDays": 14}, ("versioning",), "object versions"),
        ({}, {"versioning": "true"}, ("softDeleteDays",), ""),
        ({"days": 7}, {"softDeleteDays": 7}, BOTH, ""),
        ({}, {"softDeleteDays": 7, "versioning": "true"}, (), ""),
    ],
)
def test_a_bucket_is_protected_better_and_never_worse(
    bucket_answer, monkeypatch, has, asked, left, said
):
    lines = []
    monkeypatch.setattr(pulumi.log, "info", lines.append)
    bucket_answer(a_bucket(OURS, **has))
    values = {f"outlast:{key}": value for key, value in asked.items()}
    assert lookups.find_bucket(check({**HERE, **values})).leave == left
    assert len(lines) == bool(said) and all(said in line for line in lines)


def test_no_bucket_is_made_new(bucket_answer):
    bucket_answer(None)
    assert lookups.find_bucket(check(HERE)) == FoundBucket("europe-west4")


def test_a_strangers_bucket_is_refused(bucket_answer):
    bucket_answer(a_bucket({}))
    with pytest.raises(SettingsError, match="has no label managed-by=outlast; set outlast:bucket"):
        lookups.find_bucket(check(HERE))


def test_an_existing_bucket_needs_no_label_and_is_not_adopted(bucket_answer):
    bucket_answer(a_bucket({}))
    found = lookups.find_bucket(check({**HERE, "outlast:bucketMode": "existing"}))
    assert found == FoundBucket("europe-west4")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "must exist with bucketMode existing"),
        (a_bucket({}, uniform=False), "has no uniform bucket-level access"),
        (
            a_bucket({}, retentionPolicy={"retentionPeriod": "3600"}),
            "has a retention policy of 3600 s, and a",
        ),
        (a_bucket({}, defaultEventBasedHold=True), "an event-based hold on new"),
        (a_bucket({}, billing={"requesterPays": True}), "lets the requester pay, and a VM's"),
    ],
)
def test_an_existing_bucket_must_do(bucket_answer, answer, said):
    bucket_answer(answer)
    with pytest.raises(SettingsError, match=said):
        lookups.find_bucket(check({**HERE, "outlast:bucketMode": "existing"}))


def test_what_an_existing_bucket_bills_for_longer_is_named(bucket_answer, monkeypatch):
    warned = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    bucket_answer(a_bucket({}, days=7, versions=True, autoclass={"enabled": True}))
    lookups.find_bucket(check({**HERE, "outlast:bucketMode": "existing"}))
    assert len(warned) == 1
    assert "has object versions and soft delete of 7 days and Autoclass, so that" in warned[0]


def test_a_bucket_elsewhere_is_said(bucket_answer, monkeypatch):
    logged = []
    monkeypatch.setattr(pulumi.log, "warn", logged.append)
    bucket_answer(a_bucket({"managed-by": "outlast"}, "US"))
    assert lookups.find_bucket(check(HERE)) == FoundBucket("us", adopt=True)
    (said,) = logged
    assert "is in us, the VMs in europe-west4" in said and "billed" in said


@pytest.mark.parametrize("dry", [True, False], ids=["preview", "up"])
def test_a_bucket_that_cannot_be_looked_up_is_a_warning_and_no_missing_one(
    bucket_answer, monkeypatch, dry
):
    warned = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: dry)
    for error in (compute.CannotAsk(401, "no token"), compute.CannotAsk(0, "refused")):
        bucket_answer(error)
        if dry:
            assert lookups.find_bucket(check(HERE)) == FoundBucket()
            assert "whether open runs are protected is not checked" in warned.pop()
        else:
            with pytest.raises(SettingsError, match="cannot be looked up .* is unknown; run pul"):
                lookups.find_bucket(check(HERE))


@pytest.mark.parametrize("dry", [True, False], ids=["preview", "up"])
def test_an_up_asks_again_for_a_bucket_that_gave_no_answer(bucket_answer, monkeypatch, dry):
    monkeypatch.setattr(pulumi.log, "warn", lambda msg: None)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: dry)
    monkeypatch.setattr(lookups, "BRIEF", retry.Patience(FakeClock(), limits=retry.BRIEF.limits))
    silent = compute.CannotAsk(503, "busy")
    silent.trouble = retry.Trouble.SILENT
    bucket_answer(a_bucket(OURS))
    answering, asked = project.ask_google, []

    def ask(*args, **kwargs):
        asked.append(args)
        if len(asked) == 1:
            raise silent
        return answering(*args, **kwargs)

    monkeypatch.setattr(project, "ask_google", ask)
    found = lookups.find_bucket(check(HERE))
    assert found == (FoundBucket() if dry else FoundBucket("europe-west4", adopt=True))


def test_a_cloud_that_is_down_is_said_in_one_line(monkeypatch):
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "any")
    monkeypatch.setenv("GOOGLE_STORAGE_CUSTOM_ENDPOINT", "http://127.0.0.1:1/storage/v1/")
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
    warned = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    assert lookups.find_bucket(check(HERE)) == FoundBucket()
    assert len(warned) == 1 and "\n" not in warned[0]


# -- The code's look-up


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(), []),
        (Answer(warning="w"), ["w"]),
        (Answer(refusal="outlast:gitSecret 's': is not there"), None),
    ],
)
def test_the_code_is_asked_for_while_the_bucket_is(monkeypatch, answer, said):
    git = {"delivery": "git", "gitUrl": "https://git.example/code", "gitCommit": "a" * 40}
    config = check({**HERE, **command(**git, trainer="mine")})
    order, logged = [], []

    def ask(git, named):
        order.append(git.url)
        assert named == {}
        return lambda: [Answer(), answer]

    def find_bucket(config):
        order.append("bucket")
        return FoundBucket("here")

    monkeypatch.setattr(sources, "ask", ask)
    monkeypatch.setattr(lookups.networks, "ask", lambda settings: lambda: [])
    monkeypatch.setattr(lookups, "find_bucket", find_bucket)
    monkeypatch.setattr(pulumi.log, "warn", logged.append)
    if said is None:
        with pytest.raises(SettingsError, match=answer.refusal):
            settings.look_up(config)
    else:
        assert settings.look_up(config) == FoundBucket("here")
        assert logged == said
    assert order == ["https://git.example/code", "bucket"]


def test_each_secret_is_looked_up_once(monkeypatch):
    asked = []
    monkeypatch.setattr(lookups, "find_bucket", lambda config: FoundBucket("here"))

    def secret(setting, name):
        asked.append(name)
        return (
            Answer(refusal=f"outlast:{setting}: no") if name.endswith("hf/versions/1") else Answer()
        )

    monkeypatch.setattr(sources, "secret", secret)
    variables = {"A_KEY": "wandb", "B_KEY": "wandb", "C_KEY": "hf/versions/1"}
    config = check({**HERE, **command(secretEnv=json.dumps(variables), webhookSecret="wandb")})
    with pytest.raises(SettingsError, match=r"outlast:secretEnv\.C_KEY: no"):
        settings.look_up(config)
    assert sorted(asked) == [
        "projects/acme-research/secrets/hf/versions/1",
        "projects/acme-research/secrets/wandb/versions/latest",
    ]


def test_without_git_no_host_is_asked_for_the_code(monkeypatch):
    monkeypatch.setattr(lookups, "find_bucket", lambda config: FoundBucket("here"))
    monkeypatch.setattr(sources, "ask", None)
    assert settings.look_up(check(HERE)) == FoundBucket("here")


# -- A command


def command(**values):
    return {f"outlast:{key}": value for key, value in values.items()}


def test_a_command_is_a_line_or_a_list():
    line = check(command(command="python3 train.py --out {result}"))
    assert (line.trainer, line.command) == ("command", '"python3 train.py --out {result}"')
    words = check(command(command='["python3", "train.py", "--out", "{result}"]'))
    assert json.loads(words.command) == ["python3", "train.py", "--out", "{result}"]
    assert line.run != words.run != check().run
    assert check(command(command="python3 train.py --out {result}")).run == line.run


def test_a_commands_files_and_requirements_are_part_of_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "project", lambda: tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("1\n")
    (tmp_path / "needs.txt").write_text("keras==3.15.0\n")
    values = command(command="python train.py", source="code", requirements="needs.txt")
    names = [check(command(command="python train.py")).run, check(values).run]
    (tmp_path / "code" / ".env").write_text("never delivered\n")
    assert check(values).run == names[-1]
    (tmp_path / "code" / "train.py").write_text("2\n")
    names.append(check(values).run)
    (tmp_path / "needs.txt").write_text("keras==3.15.1\n")
    names.append(check(values).run)
    assert len(set(names)) == 4
    # A machine is none; neither is how the end of a save is seen.
    found = check({**values, **command(machineType="n2-standard-8", checkpointQuietSec="30")})
    assert found.run == names[-1] and found.checkpoint_quiet_sec == 30


def test_a_requirements_file_is_delivered_with_all_that_it_includes(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "project", lambda: tmp_path)
    (tmp_path / "req").mkdir()
    (tmp_path / "req" / "train.txt").write_text("-r ../base.txt\n-c limits.txt\nkeras\n")
    (tmp_path / "base.txt").write_text("numpy>=2\n")
    (tmp_path / "req" / "limits.txt").write_text("numpy<3\n")
    values = command(command="python train.py", requirements="req/train.txt")
    first = check(values).run
    assert requirement_files("req/train.txt") == {
        "requirements/user.txt": b"-c outlast-constraints.txt\nnumpy>=2\nkeras\n",
        "requirements/outlast-constraints.txt": b"numpy<3\n",
    }
    (tmp_path / "base.txt").write_text("numpy>=2  # only a remark\n")
    assert check(values).run == first
    for name in ("base.txt", "req/limits.txt"):
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text("numpy==2.4\n")
        assert check(values).run != first
        (tmp_path / name).write_text(before)
    assert check(values).run == first

    # An index of Google's needs a right, and the whole command is said.
    index = "https://europe-west4-python.pkg.dev/acme/wheels/simple/"
    (tmp_path / "base.txt").write_text(f"--extra-index-url {index}\nnumpy>=2\n")
    (sentence,) = [line for line in check(values).advice if "pkg.dev" in line]
    assert "add-iam-policy-binding wheels --project acme --location europe-west4" in sentence
    assert "--member serviceAccount:outlast-dev@acme-research.iam.gserviceaccount.com" in sentence

    # Whatever cannot be installed is said at preview, with its own file and line.
    (tmp_path / "base.txt").write_text("numpy>=2\n\n-e git+https://h/o/n.git#egg=n\n")
    said = refusal(values)
    assert said.startswith(
        "outlast:requirements base.txt line 3 '-e git+https://h/o/n.git#egg=n': "
    )
    (tmp_path / "base.txt").write_text("-e .\n")
    assert "set outlast:requirements to the folder that holds both" in refusal(values)
    (tmp_path / ".secret.txt").write_text("numpy\n")
    (tmp_path / "base.txt").write_text("-r .secret.txt\n")
    assert "a file that must not leave this machine" in refusal(values)
    (tmp_path / "environment.yml").write_text("dependencies: [numpy]\n")
    found = refusal(command(command="x", requirements="environment.yml"))
    assert found.startswith("outlast:requirements environment.yml: is a conda file")


def test_a_folder_of_requirements_is_read_at_preview(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "project", lambda: tmp_path)
    (tmp_path / "train" / "lib").mkdir(parents=True)
    values = command(command="python train.py", requirements="train")
    (tmp_path / "train" / "requirements.txt").write_text("-e ./lib\nnumpy\n")
    assert "outlast:requirements train/requirements.txt line 1 '-e ./lib': train/lib does not" in (
        refusal(values)  # empty folders are not delivered
    )
    (tmp_path / "train" / "lib" / "setup.py").write_text("")
    assert check(values).requirements == "train"
    assert set(requirement_files("train")) == {"package/requirements.txt", "package/lib/setup.py"}
    (tmp_path / "train" / "pyproject.toml").write_text(
        "[project]\nname='x'\ndependencies=['a=1']\n"
    )
    (tmp_path / "train" / "requirements.txt").unlink()
    assert "train/pyproject.toml project.dependencies[0] 'a=1': is conda's form" in refusal(values)


def test_other_data_is_another_run_of_a_command():
    values = command(command="cat {data}/x")
    one = check({**values, **command(dataPaths='["gs://b/one/"]')})
    other = check({**values, **command(dataPaths='["gs://b/other/"]')})
    assert one.run != other.run and one.data_paths == ("gs://b/one/",)


def test_requirements_are_part_of_a_trainers_name_too():
    plain, own = check(), check(command(requirements="requirements/dev.txt"))
    assert plain.run != own.run and own.requirements == "requirements/dev.txt"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (command(command="[python3, train.py]"), "a list must be JSON texts, such as"),
        (command(command="[]"), "a list must be JSON texts, such as"),
        (command(command="x", trainer="dummy"), "a run has a trainer or a command"),
        (command(command="x", args='{"epochs": 3}'), "are for a trainer; write the command's own"),
        (command(command="x", processes="2"), "a command starts its own"),
        (command(command="x", trainerPython="/usr/bin/python3"), "write the interpreter into"),
        (command(command="x", checkpointEvery="200"), "a command makes no steps; must be auto"),
        (command(command="x", trainerUser="me"), "outlast:trainerUser 'me': must be root or own"),
        (
            command(command="sudo x", trainerUser="own"),
            "sudo, but with outlast:trainerUser own",
        ),
        (command(command='["docker", "run"]', trainerUser="own"), "may not use Docker"),
        (command(command="x; /opt/bin/gsutil cp a b", trainerUser="own"), "gets no token"),
        (command(command="x {output_uri}", trainerUser="own"), "let it write into RESULT_DIR"),
        (command(command="x $OUTPUT_URI", trainerUser="own"), "set outlast:trainerUser to root"),
        (command(command="x", source="nowhere"), "must be a folder in the checkout"),
        (command(command="x", source="../"), "must be a folder in the checkout"),
        (command(command="x", source="/etc"), "must be a folder in the checkout"),
        (command(command="x", source="__main__.py"), "must be a folder in the checkout"),
        (command(command="x", source=".git"), "must be a folder in the checkout, and none that"),
        (command(command="x", source="s" * 300), "must be a folder in the checkout"),
        (command(command="x", source="a\0b"), "must be a folder in the checkout"),
        (command(command="x", requirements=".venv/pyvenv.cfg"), "and none that is hidden"),
        (
            command(command="x", requirements="nowhere.txt"),
            "must be a file or a folder in the checkout",
        ),
        (command(command="x", checkpointQuietSec="0"), "must be a whole number from 1"),
        (command(command="cat {data}"), "the run has no data; set outlast:dataPaths"),
        (
            command(requirements="requirements/dev.txt", trainerPython="/usr/bin/python3"),
            "leave out one of them",
        ),
    ],
)
def test_a_command_that_cannot_be_is_a_sentence(values, sentence):
    assert sentence in refusal(values)


def test_the_supervisor_reads_the_command():
    assert _read_command("outlast-command", check(command(command="a b")).command) == "a b"
    assert _read_command("outlast-command", check(command(command='["a", "b"]')).command) == (
        "a",
        "b",
    )
    for text in ("a b", "[]", "[1]", "{}", '""'):
        with pytest.raises(BadSpec, match="outlast-command is "):
            _read_command("outlast-command", text)


def test_a_trainer_with_its_own_user_is_warned_of_unreadable_files():
    own = {"outlast:trainerUser": "own", "outlast:dataPaths": '["gs://b/digits"]'}
    assert not [one for one in check(own).advice if "trainerUser" in one]
    (said,) = [
        one
        for one in check(own | command(command="python3 t.py gs://b/digits")).advice
        if "trainerUser" in one
    ]
    assert "cannot read gs://b/digits itself; give it the files by {data}" in said
    plain = command(command="python3 t.py {data}", trainerUser="own", dataPaths='["gs://b/d"]')
    assert not [one for one in check(plain).advice if "trainerUser" in one]
    assert check(command(command="python3 pseudo.py --docker-free", trainerUser="own")).command
