"""The rules of machines: every combination is accepted or refused with its reason."""

from dataclasses import replace

import pytest

from components import machines
from components.machines import BURST, DEDICATED, FLEX, MODES, SPOT, STANDARD, Choice, MachineError
from tools import machines_table

GPUS = {
    "none": ("n1-standard-8", "", 0),
    "attached": ("n1-standard-8", "nvidia-tesla-t4", 1),
    "built in": ("g2-standard-8", "", 0),
    "wrong": ("e2-standard-8", "nvidia-tesla-t4", 1),
}


def why_not(provisioning: str, gpu: str, mode: str) -> str | None:
    """The whole table in words; None: it can be. Where the group is makes no difference."""
    if provisioning == FLEX:
        return "a VM that is lost is not made anew"
    if provisioning == SPOT and mode == DEDICATED:
        return "mode dedicated is a VM that is not preempted"
    if gpu == "wrong":
        return "e2-standard-8 takes no GPU, only N1 machines do"
    return None


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
        with pytest.raises(MachineError, match=expected) as caught:
            machines.check(choice)
        assert "; " in str(caught.value) and str(caught.value).startswith("outlast:")
        return
    found = machines.check(choice)
    assert found.spot == (provisioning == SPOT)
    assert found.gpus == (0 if gpu == "none" else 1)
    # A machine with a GPU cannot be moved; a dedicated one shall stop and go on by the same way.
    assert found.restarts == (provisioning == STANDARD and (mode == DEDICATED or gpu != "none"))


@pytest.mark.parametrize(("mode", "spot"), [("survive", True), (BURST, True), (DEDICATED, False)])
def test_where_nothing_is_said_the_mode_decides(mode, spot):
    assert machines.check(Choice(mode=mode)).spot is spot


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "brisk"}, "outlast:mode 'brisk': must be survive, burst or dedicated"),
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
        ({"machine_type": "c3-custom-8-16384"}, "c3 has no custom types; e2, n1, n2, n2d or n4"),
        # GPUs
        (
            {"accelerator": "nvidia-l4", "accelerator_count": 1},
            "is part of the machine types of g2",
        ),
        (
            {"machine_type": "g2-standard-8", "accelerator": "nvidia-l4", "accelerator_count": 1},
            "accelerator 'nvidia-l4': g2-standard-8 has 1 nvidia-l4 already; leave it out",
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
            "g1-small has part of a CPU and takes no GPU",
        ),
        ({"accelerator_count": 1}, "acceleratorCount 1: there is no outlast:accelerator"),
        # Spot
        (
            {"machine_type": "a4x-highgpu-4g", "disk_type": "hyperdisk-balanced"},
            "a4x-highgpu-4g is not there as a Spot VM; set outlast:provisioning standard",
        ),
        (
            {"machine_type": "a3-highgpu-1g", "provisioning": STANDARD},
            "a3-highgpu-1g is there as a Spot VM only",
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
        ({"machine_type": "c3-standard-8-lssd", "local_ssd": 1}, "brings its local SSDs"),
        ({"machine_type": "a2-ultragpu-1g", "local_ssd": 1}, "brings its local SSDs"),
        ({"min_cpu_platform": "Intel Skylake"}, "e2-standard-2 has no other than its own"),
        (
            {"machine_type": "n2-standard-2", "min_cpu_platform": "AMD Milan"},
            "n2-standard-2 has Intel Cascade Lake or Intel Ice Lake",
        ),
        # Several types
        (
            {"more_types": ("n2-standard-2",)},
            "a zonal group takes one machine type; set outlast:zo",
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


def test_a_new_family_is_let_through_with_a_word():
    found = machines.check(Choice(machine_type="n9-standard-8", disk_type="hyperdisk-balanced"))
    (said,) = found.advice
    assert "family n9 is not in Outlast's table" in said
    assert said.endswith("nothing about it is checked here")


def test_advice_is_no_error():
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
