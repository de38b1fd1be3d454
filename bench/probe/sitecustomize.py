"""Python imports this at its start because the benches put this folder on the path."""

import bench_probe

bench_probe.begin()
