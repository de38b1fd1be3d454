"""Time and memory, the same for us and for peers; no import but the standard library and numpy."""

import argparse
import json
import time
from pathlib import Path

import numpy as np

ARRAYS = 10


def arguments():
    """The flags of every measured process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--store", default="")
    parser.add_argument("--subject", default="")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    return args


def state(mb):
    """Float32 arrays of that many MB in all."""
    generator = np.random.default_rng(5)
    size = int(mb * 1e6 / 4 / ARRAYS)
    return {f"a{i}": generator.random(size, dtype=np.float32) for i in range(ARRAYS)}


def change(arrays):
    """Every page of the state gets another value, as a step of training does it."""
    for array in arrays.values():
        array[:: 4096 // 4] += 1.0


def resident_mb(pid="self", key="VmHWM"):
    """The largest resident memory so far; file pages that are mapped count."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def forget_peak(pid="self"):
    """Restart the count of the largest resident memory from the present value; return that."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return resident_mb(pid, "VmRSS")


class Stopwatch:
    """Seconds of each time that its body ran."""

    def __init__(self):
        self.seconds = []

    def __enter__(self):
        self.begun = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds.append(time.perf_counter() - self.begun)


def report(**found):
    """The last line that the process prints."""
    print(json.dumps(found), flush=True)
