"""The rules of machines: every combination is accepted or refused with its reason."""

from dataclasses import replace

import pytest

from outlast.machines import machines, regions
from outlast.machines.families import FAMILIES, MIGRATE, TERMINATE
from outlast.machines.machines import (
    BURST,
    DEDICATED,
    FLEX,
    MODES,
    SPOT,
    STANDARD,
    Choice,
    MachineError,
)
from tools import machines_table

GPUS = {
    "none": ("n1-standard-8", "", 0),
    "attached": ("n1-standard-8", "nvidia-tesla-t4", 1),
    "built in": ("g2-standard-8", "", 0),
    "wrong": ("e2-standard-8", "nvidia-tesla-t4", 1),
}


FLEX_IS = (
    "outlast:provisioning 'flex-start': flex-start VMs are created once, by a resize request, in a"
    " group that repairs nothing: a VM that is lost is not recreated, and the run would stop; set"
    " outlast:provisioning spot or standard"
)
DEDICATED_IS = (
    "outlast:provisioning 'spot': mode dedicated is a VM that is not preempted; set"
    " outlast:provisioning standard, or outlast:mode survive"
)
WRONG_IS = (
    "outlast:accelerator 'nvidia-tesla-t4': e2-standard-8 takes no GPU, only N1 machines do; leave"
    " it out, or set outlast:machineType n1-standard-4 for example"
)


def why_not(provisioning: str, gpu: str, mode: str) -> str | None:
    """The whole table in words; None: it can be. Where the group is makes no difference."""
    if provisioning == FLEX:
        return FLEX_IS
    if provisioning == SPOT and mode == DEDICATED:
        return DEDICATED_IS
    return WRONG_IS if gpu == "wrong" else None


@pytest.mark.parametrize("place", ["zonal", "regional"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("provisioning", [SPOT, STANDARD, FLEX])
def test_the_whole_table(provisioning, gpu, mode, place):
    machine_type, accelerator, count = GPUS[gpu]
    choice = Choice(
        mode=mode,
        provisioning=provisioning,
        machine_type=machine_type,
        accelerator=accelerator,
        accelerator_count=count,
        regional=place == "regional",
    )
    expected = why_not(provisioning, gpu, mode)
    if expected is not None:
        with pytest.raises(MachineError) as caught:
            machines.check(choice)
        assert str(caught.value) == expected
        return
    found = machines.check(choice)
    assert found.spot == (provisioning == SPOT)
    assert found.gpus == (0 if gpu == "none" else 1)
    # A machine with a GPU cannot be moved; a dedicated one stops and restarts in the same way.
    assert found.restarts == (provisioning == STANDARD and (mode == DEDICATED or gpu != "none"))


@pytest.mark.parametrize(
    ("mode", "machine_type", "stops"),
    [
        (DEDICATED, "e2-standard-2", False),  # refused by the API
        (DEDICATED, "e2-custom-4-8192", False),
        (DEDICATED, "z3-highmem-14-standardlssd", False),
        (DEDICATED, "z3-highmem-176-standardlssd", True),
        (DEDICATED, "n2-standard-4", True),
        ("survive", "n2-standard-4", False),
        ("survive", "e2-standard-2", False),
        ("survive", "h3-standard-88", False),
        (DEDICATED, "h3-standard-88", True),
        ("survive", "z3-highmem-88-standardlssd", False),  # 18,000 GiB, and no more
        ("survive", "h4d-standard-192", True),
        ("survive", "z3-highmem-88-highlssd", True),
        ("survive", "z3-highmem-44-highlssd", False),
        ("survive", "z3-highmem-192-highlssd-metal", True),
        ("survive", "c3-standard-192-metal", True),
        ("survive", "c4a-highmem-96-metal", True),
        ("survive", "g2-standard-8", True),
        ("survive", "x9-standard-64-metal", True),  # of a family that the table does not know
    ],
)
def test_a_standard_vm_is_maintained_as_its_family_can_be(mode, machine_type, stops):
    disk = "hyperdisk-balanced" if machine_type[:2] in ("h4", "c4") else "pd-balanced"
    choice = Choice(mode=mode, provisioning=STANDARD, machine_type=machine_type, disk_type=disk)
    assert machines.check(choice).restarts is stops


def test_types_of_one_group_that_are_maintained_in_different_ways_are_refused():
    ranked = {"machine_type": "c3-standard-192-metal", "more_types": ("e2-standard-32",)}
    choice = Choice(provisioning=STANDARD, regional=True, **ranked)
    with pytest.raises(MachineError, match="e2-standard-32 can only be moved and c3"):
        machines.check(choice)
    mixed = replace(choice, machine_type="n2-standard-4", mode=DEDICATED)
    assert not machines.check(mixed).restarts  # one template serves both
    metal = ("c3-standard-192-metal",)
    machines.check(replace(choice, machine_type="n2-standard-4", more_types=metal))
    assert not machines.check(replace(mixed, mode="survive", provisioning=SPOT)).restarts


def test_every_machine_type_of_the_table_has_one_way_to_be_maintained():
    for name, family in FAMILIES.items():
        for machine_type in family.types:
            way = machines.parse(machine_type).maintenance
            assert way in ("", MIGRATE, TERMINATE)
            assert (way == TERMINATE) or (not family.gpu and not machine_type.endswith("metal"))
        assert set(family.stopped) <= set(family.types), name


@pytest.mark.parametrize(("mode", "spot"), [("survive", True), (BURST, True), (DEDICATED, False)])
def test_where_nothing_is_said_the_mode_decides(mode, spot):
    assert machines.check(Choice(mode=mode)).spot is spot


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"provisioning": "cheap"}, "must be spot or standard; set outlast:provisioning, or leave"),
        ({"mode": BURST, "retries_failures": 2}, "retriesFailures 2: a burst run ends with its"),
        # Custom types
        ({"machine_type": "n2-custom-7-8192"}, "2 to 128 CPUs, here a multiple of 2"),
        ({"machine_type": "n2-custom-34-65536"}, "here a multiple of 4"),
        ({"machine_type": "custom-3-8192"}, "here a multiple of 2"),
        ({"machine_type": "e2-custom-64-65536"}, "must have 2 to 32 CPUs"),
        ({"machine_type": "n2-custom-8-16000"}, "memory is 16000 MB, must be a multiple of 256"),
        ({"machine_type": "n2-custom-8-131072"}, "4096 to 65536 MB of memory; more takes -ext"),
        ({"machine_type": "e2-custom-8-65536-ext"}, "e2 has no extended memory"),
        (
            {"machine_type": "c3-custom-8-16384"},
            "c3 has no custom types; e2, n1, n2, n2d, n4, n4a or n4d",
        ),
        ({"machine_type": "n2-custom-128-1048576"}, "no n2 machine has more than 884736 MB"),
        ({"machine_type": "n4d-custom-6-8192"}, "2 to 96 CPUs, here a multiple of 8"),
        ({"machine_type": "n1-custom-2-1792"}, "2 CPUs take 2048 to 13312 MB of memory"),
        ({"machine_type": "e2-custom-small-8192"}, "e2-small takes 1024 to 4096 MB of memory"),
        # Sizes
        (
            {"machine_type": "n2-standard-3"},
            "outlast:machineType 'n2-standard-3': there is no such machine type; the nearest:"
            " n2-standard-2 or n2-standard-4; set outlast:machineType, or name it in"
            " outlast:allowUnlisted too if it is newer than April 2026",
        ),
        ({"machine_type": "c3-standard-5"}, "the nearest: c3-standard-4 or c3-standard-8; set"),
        ({"machine_type": "a2-highgpu-3g"}, "the nearest: a2-highgpu-2g or a2-highgpu-4g; set"),
        ({"machine_type": "n2-standard-256"}, "the nearest: n2-standard-128; set"),
        ({"machine_type": "c3-highmem-8-lssd"}, "the nearest: c3-highmem-8, "),
        ({"machine_type": "n2-highmen-8"}, "the nearest: n2-highmem-8, "),
        ({"machine_type": "a4-highgpu-4g"}, "the nearest: a4-highgpu-8g; set"),
        (
            {"more_types": ("e2-standard-5",), "regional": True},
            "outlast:machineTypes 'e2-standard-5': there is no such machine type",
        ),
        # GPUs
        (
            {"accelerator": "nvidia-l4", "accelerator_count": 1},
            "is part of the machine types of g2",
        ),
        (
            {"machine_type": "g2-standard-8", "accelerator": "nvidia-l4", "accelerator_count": 1},
            "accelerator 'nvidia-l4': g2-standard-8 already has 1 nvidia-l4; leave it out",
        ),
        (
            {"machine_type": "n1-standard-4", "accelerator": "nvidia-t4", "accelerator_count": 1},
            "did you mean nvidia-tesla-t4?",
        ),
        (
            {"machine_type": "n1-standard-4", "accelerator": "tpu", "accelerator_count": 1},
            "must be nvidia-tesla-t4, nvidia-tesla-p4, nvidia-tesla-p100 or nvidia-tesla-v100",
        ),
        (
            {
                "machine_type": "n1-standard-4",
                "accelerator": "nvidia-tesla-t4",
                "accelerator_count": 3,
            },
            "acceleratorCount 3: must be 1, 2 or 4 for nvidia-tesla-t4",
        ),
        (
            {
                "machine_type": "n1-standard-16",
                "accelerator": "nvidia-tesla-v100",
                "accelerator_count": 1,
            },
            "beside 1 nvidia-tesla-v100 a machine has at most 12 CPUs",
        ),
        (
            {
                "machine_type": "g1-small",
                "accelerator": "nvidia-tesla-t4",
                "accelerator_count": 1,
            },
            "g1-small has a part of a CPU and takes no GPU",
        ),
        (
            {"accelerator_count": 1},
            "acceleratorCount 1: outlast:accelerator, which it counts, is not set",
        ),
        # Spot
        (
            {"machine_type": "a4x-highgpu-4g", "disk_type": "hyperdisk-balanced"},
            "a4x-highgpu-4g does not exist as a Spot VM; set outlast:provisioning standard",
        ),
        ({"machine_type": "h3-standard-88"}, "h3-standard-88 does not exist as a Spot VM"),
        (
            {"machine_type": "a3-highgpu-1g", "provisioning": STANDARD},
            "a3-highgpu-1g exists only as a Spot VM",
        ),
        # Disks, SSDs, CPU platforms
        (
            {"machine_type": "c4-standard-8"},
            "bootDiskType 'pd-balanced': c4-standard-8 takes hyper",
        ),
        (
            {"machine_type": "a2-highgpu-1g", "disk_type": "local-ssd"},
            "a2-highgpu-1g takes pd-standard, pd-balanced",
        ),
        ({"local_ssd": 1}, "localSsd 1: e2-standard-2 takes none; leave it out"),
        ({"machine_type": "g2-standard-48", "local_ssd": 1}, "localSsd 1: g2-standard-48 takes 4"),
        ({"machine_type": "n2-standard-16", "local_ssd": 1}, "takes 2, 4, 8, 16 or 24"),
        ({"machine_type": "c3-standard-8", "local_ssd": 1}, "a type whose name ends in -lssd"),
        ({"machine_type": "c3-standard-8-lssd", "local_ssd": 1}, "includes local SSDs"),
        ({"machine_type": "a2-ultragpu-1g", "local_ssd": 1}, "includes local SSDs"),
        (
            {"machine_type": "a2-ultragpu-1g-nolssd", "local_ssd": 1},
            "localSsd 1: a2-ultragpu-1g-nolssd takes none; leave it out",
        ),
        (
            {
                "machine_type": "n1-standard-8",
                "accelerator": "nvidia-tesla-t4",
                "accelerator_count": 1,
                "local_ssd": 24,
            },
            "localSsd 24: beside nvidia-tesla-t4 a machine takes at most 16",
        ),
        (
            {"machine_type": "n2-standard-8", "disk_type": "hyperdisk-throughput"},
            "n2-standard-8 takes pd-standard, pd-balanced, pd-ssd or pd-extreme",
        ),
        ({"min_cpu_platform": "Intel Skylake"}, "e2-standard-2 has only its own"),
        (
            {"machine_type": "n2-standard-2", "min_cpu_platform": "AMD Milan"},
            "n2-standard-2 has Intel Cascade Lake or Intel Ice Lake",
        ),
        # Several types
        (
            {"more_types": ("n2-standard-2",)},
            "a zonal group can have only one machine type; set outlast:zo",
        ),
        ({"more_types": ("e2-standard-2",), "regional": True}, "none of them e2-standard-2"),
        (
            {"more_types": ("g2-standard-4",), "regional": True},
            "some have GPUs and some have none",
        ),
        (
            {
                "machine_type": "n1-standard-4",
                "accelerator": "nvidia-tesla-t4",
                "accelerator_count": 1,
                "more_types": ("n1-standard-8",),
                "regional": True,
            },
            "a choice of machine types cannot have GPUs attached",
        ),
        (
            {"more_types": ("c4-standard-2",), "regional": True},
            "bootDiskType 'pd-balanced': c4-standard-2 takes",
        ),
    ],
)
def test_refused(changes, words):
    with pytest.raises(MachineError) as caught:
        machines.check(replace(Choice(), **changes))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("machine_type", "family", "cpus", "gpus"),
    [
        ("custom-4-8192", "n1", 4, 0),
        ("n2-custom-8-16384", "n2", 8, 0),
        ("n1-custom-2-32768-ext", "n1", 2, 0),
        ("e2-medium", "e2", 0, 0),
        ("n2-standard-80", "n2", 80, 0),
        ("c3-standard-88-lssd", "c3", 88, 0),
        ("g2-standard-24", "g2", 24, 2),
        ("g4-standard-6", "g4", 6, 1),
        ("g4-standard-384", "g4", 384, 8),
        ("a2-highgpu-4g", "a2-highgpu", 48, 4),
        ("a2-megagpu-16g", "a2-megagpu", 96, 16),
        ("a3-ultragpu-8g", "a3-ultragpu", 0, 8),
        ("a4-highgpu-8g", "a4", 0, 8),
    ],
)
def test_names_taken_apart(machine_type, family, cpus, gpus):
    found = machines.parse(machine_type)
    assert (found.family, found.cpus, found.gpus) == (family, cpus, gpus)
    disk = FAMILY_DISK.get(family, "pd-balanced")
    assert machines.check(Choice(machine_type=machine_type, disk_type=disk)).gpus == gpus


FAMILY_DISK = dict.fromkeys(["g4", "a3-ultragpu", "a4"], "hyperdisk-balanced")


@pytest.mark.parametrize(
    ("changes", "ssds"),
    [
        ({"machine_type": "n1-standard-1"}, 3),
        ({"machine_type": "n2-standard-128"}, 24),
        ({"machine_type": "a2-highgpu-2g"}, 2),
        ({"machine_type": "c2-standard-60"}, 8),
    ],
)
def test_local_ssds_that_fit(changes, ssds):
    machines.check(Choice(local_ssd=ssds, **changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_machine_type_of_the_table_can_be(family):
    rules = FAMILIES[family]
    assert len(set(rules.types)) == len(rules.types) > 0
    for name in rules.types:
        found = machines.parse(name)
        assert found.family == family, name
        assert bool(found.gpus) == bool(rules.gpu), name
        spot = "" if rules.spot else STANDARD
        machines.check(Choice(machine_type=name, disk_type=rules.disks[0], provisioning=spot))


def test_what_is_newer_than_the_table_passes_with_a_word():
    found = machines.check(Choice(machine_type="c3-standard-500", unlisted=("c3-standard-500",)))
    (said,) = found.advice
    assert said.startswith("outlast:machineType c3-standard-500: is named in outlast:allowUnlisted")


def test_arm_is_said():
    arm = Choice(machine_type="c4a-standard-8", disk_type="hyperdisk-balanced", image="debian-13")
    (said,) = machines.check(arm).advice
    assert "its CPUs are Arm; outlast:image debian-13 must be an Arm image" in said
    assert machines.check(replace(arm, image="debian-13-arm64")).advice == ()


NEWER = "if it is newer than January 2026"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"zone": "europe-west99-z"},
            "outlast:zone 'europe-west99-z': Google has no region europe-west99; did you mean"
            " europe-west9?; set outlast:zone, or name europe-west99 in outlast:allowUnlisted"
            f" {NEWER}",
        ),
        ({"zone": "mars-1a"}, "outlast:zone 'mars-1a': must be a zone such as europe-west4-a; set"),
        (
            {"zone": "europe-west1-a"},
            "europe-west1 has the zones europe-west1-b, europe-west1-c and europe-west1-d; set"
            f" outlast:zone, or name europe-west1-a in outlast:allowUnlisted {NEWER}",
        ),
        ({"default": "us-north9-a"}, "gcp:zone 'us-north9-a': Google has no region us-north9"),
        ({"region": "asia-west1"}, "outlast:region 'asia-west1': Google has no region asia-west1"),
        ({"region": "mars"}, "must be a region such as europe-west4; set outlast:region or leave"),
        ({"zones": ["us-east1-b", "us-east1-z"]}, "outlast:zones 'us-east1-z': us-east1 has the"),
    ],
)
def test_places_that_are_none(given, words):
    wanted = {"zone": "", "region": "", "zones": [], **given}
    with pytest.raises(MachineError) as caught:
        regions.locate(**wanted)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "region"),
    [
        ({"zone": "us-central1-f"}, "us-central1"),
        ({"zone": "us-south1-ai1b"}, "us-south1"),
        ({"region": "asia-southeast3"}, "asia-southeast3"),
        ({"default": "europe-west1-d"}, "europe-west1"),
        ({"zone": "europe-west1-e", "unlisted": ["europe-west1-e"]}, "europe-west1"),
        ({"zone": "asia-west1-a", "unlisted": ["asia-west1"]}, "asia-west1"),
        ({"region": "asia-west1", "unlisted": ["asia-west1"]}, "asia-west1"),
    ],
)
def test_places_that_are(given, region):
    assert regions.locate(**{"zone": "", "region": "", "zones": [], **given}).region == region


def test_a_new_family_is_let_through_with_a_word():
    found = machines.check(Choice(machine_type="n9-standard-8", disk_type="hyperdisk-balanced"))
    (said,) = found.advice
    assert "family n9 is not in Outlast's table" in said
    assert said.endswith("nothing about it is checked here")


def test_advice_does_not_raise():
    gpu = Choice(accelerator="nvidia-tesla-t4", accelerator_count=1)
    few = machines.check(replace(gpu, machine_type="n1-standard-2"))
    assert "has 7.5 GB of memory beside 16 GB on its GPUs; 2 to 4 times" in few.advice[0]
    assert "CPUs as new as Intel Skylake" in few.advice[1]
    good = replace(gpu, machine_type="n1-standard-16", min_cpu_platform="Intel Skylake")
    assert machines.check(good).advice == ()
    assert machines.check(Choice()).advice == ()
    old = Choice(machine_type="n2-standard-4", min_cpu_platform="Intel Cascade Lake")
    assert "as new as Intel Ice Lake" in machines.check(old).advice[0]


def test_the_page_has_the_table():
    page = machines_table.PAGE.read_text()
    assert machines_table.written(page) == page, "run python tools/machines_table.py"
    assert all(f"| {family} |" in page for family in machines.FAMILIES)
