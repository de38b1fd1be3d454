"""Each claim that a command shows: its name, the sentence, the command."""

import shlex
from dataclasses import dataclass

PEERS = ("--peer-python", ".venv-bench/bin/python")


@dataclass(frozen=True)
class Entry:
    """One result. Its file is NAME.json."""

    name: str
    title: str
    claim: str
    """What holds if the command's exit code is 0."""
    module: str
    words: tuple[str, ...] = ()
    compares: bool = False
    """The command measures others: nothing of ours has to hold."""

    @property
    def command(self) -> str:
        """As one types it."""
        return shlex.join(["python", "-m", self.module, *self.words])


ENTRIES = (
    Entry(
        "kill-matrix",
        "Kills",
        "A run that was killed at any moment ends with the bytes and rows of an undisturbed one.",
        "bench.kill_matrix",
        ("--trainer", "dummy", "--trainer", "digits", "--points", "30", "--seed", "1"),
    ),
    Entry(
        "kill-matrix-300",
        "Kills of larger trainers",
        "The same with 300 kills of each trainer.",
        "bench.kill_matrix",
        (
            *("--trainer", "digits", "--trainer", "census", "--points", "300", "--seed", "1"),
            *("--python", ".venv-bench/bin/python"),
        ),
    ),
    Entry(
        "kill-matrix-forks",
        "Ten thousand kills",
        "The same for kills and failing requests at each operation of the store.",
        "bench.kill_matrix",
        ("--forks", "--points", "10000", "--seed", "1"),
    ),
    Entry(
        "kill-matrix-peers",
        "Kills of peers",
        "What kills do to others, resumed as their documentation shows.",
        "bench.kill_matrix",
        ("--peers", "--peer-points", "60", "--seed", "1", *PEERS),
        compares=True,
    ),
    Entry(
        "campaign",
        "A campaign",
        "Every guarantee holds for drawn runs of all trainers, commands and sweeps under sampled "
        "faults, side by side on one local cloud.",
        "tests.campaign.run",
        ("--seconds", "28800", "--seed", "1"),
    ),
    Entry(
        "zombie-matrix",
        "Stale VMs",
        "Nothing is accepted from a VM that was believed dead, and the run ends as if undisturbed.",
        "bench.zombie_matrix",
    ),
    Entry(
        "corruption-matrix",
        "Damage in the bucket",
        "Damage is found before anything reads it: no silent use, no silent start from scratch.",
        "bench.corruption_matrix",
        ("--seed", "1"),
    ),
    Entry(
        "corruption-matrix-peers",
        "Damage to files of peers",
        "The same, and beside it what others make of a flipped bit.",
        "bench.corruption_matrix",
        ("--seed", "1", "--peers", *PEERS),
    ),
    Entry(
        "save-cost",
        "The cost of a save",
        "A save stops training at most 1.2 times as long as a copy of the state, or 3 ms; commit "
        "and restore reach 0.8 of the speed of a bare transfer; the loop costs 1 % of a 1 ms step.",
        "bench.save_cost",
        ("--mb", "1", "100"),
    ),
    Entry(
        "save-cost-peers",
        "The cost of a save beside peers",
        "The same up to 1 GB, and no peer is faster.",
        "bench.save_cost",
        ("--mb", "1", "100", "1000", "--peers", *PEERS),
    ),
    Entry(
        "resume-cost",
        "A resume, and the peak of memory",
        "The check after a resume takes at most 0.3 times as long as the restore (2 times for "
        "100,000 small arrays); checkpoints take at most 1.1 states of memory.",
        "bench.resume_cost",
    ),
    Entry(
        "goodput",
        "Goodput",
        "On lives of Spot VMs, Outlast's policy reaches 99 % of the useful time that is possible, "
        "where a save blocks training for less than 1 % of the mean life.",
        "bench.goodput",
    ),
    Entry(
        "recovery",
        "Recovery",
        "From a process's start to its first new step it takes at most 1.2 times as long as a "
        "process that imports the framework and reads the checkpoint.",
        "bench.recovery",
    ),
    Entry(
        "ageing",
        "An old run",
        "A commit of an old run costs at most 1.2 times that of a young one.",
        "bench.ageing",
        ("--commits", "100000"),
    ),
    Entry(
        "local-cloud",
        "The local cloud",
        "The local cloud takes 300 small writes a second and half the speed of a bare copy, grows "
        "linearly with its VMs, and costs little while idle.",
        "bench.local_cloud",
    ),
    Entry(
        "preview",
        "Preview and up",
        "An unchanged preview takes at most 1.4 times, and a first up at most twice as long as the "
        "least that the engine needs.",
        "bench.preview",
        ("--rounds", "10"),
    ),
    Entry(
        "sweep",
        "A sweep",
        "The up of a sweep takes at most 1.3 times the processor time of as many ups, and 1.5 GB.",
        "bench.sweep",
        ("--trials", "100"),
    ),
    Entry(
        "scale",
        "Many runs",
        "The calls of `outlast list` do not grow with a run's length; beside them, which of "
        "Google's limits 1,000 runs meet first, what they cost, and what list and audit take.",
        "bench.scale",
        ("--runs", "1000", "--commits", "12"),
    ),
    Entry(
        "image-boot",
        "Images",
        "A VM of a baked image trains at least 5 times sooner than one of a stock image.",
        "bench.image_boot",
    ),
)
"""In the order of the page."""
