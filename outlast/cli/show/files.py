"""Shows what files hold, and the data of a bucket."""

from collections.abc import Sequence
from typing import Any, cast

from rich.table import Table

from outlast.base.visible import one_line
from outlast.cli.data import Listed
from outlast.cli.inspecting import Inspected
from outlast.cli.show.console import Terminal


def show_inspected(found: Inspected) -> None:
    """Parameters and trees, and files that are only named."""
    console = Terminal()
    table = Table(box=None, pad_edge=False)
    for name in ("file", "parameter", "shape", "type"):
        table.add_column(name)
    for name in ("count", "norm"):
        table.add_column(name, justify="right")
    for one in found.parameters:
        norm = "" if one.norm is None else f"{one.norm:.6g}"
        shape = " x ".join(map(str, one.shape)) or "scalar"
        cells = (one.file, one.name, shape, one.dtype)
        table.add_row(*map(one_line, cells), f"{one.count:,}", norm)
    if found.parameters:
        console.print(table)
        console.print(f"{found.count:,} numbers in {len(found.parameters)} arrays")
    for model in found.trees:
        console.sentence(
            f"{one_line(model.file)}: {model.trees} trees of {model.nodes} nodes, depth up to "
            f"{model.depth}, {model.features} features, {one_line(model.objective)}",
        )
    for name, why in found.others:
        console.sentence(f"{one_line(name)}: {why}")


def show_data(lines: Sequence[Listed]) -> None:
    """The data of a bucket, one name a line."""
    console = Terminal()
    if not lines:
        console.sentence("no data yet; outlast data push FOLDER puts some there")
        return
    table = Table(box=None, pad_edge=False)
    for name, justify in (("name", "left"), ("files", "right"), ("bytes", "right")):
        table.add_column(name, justify=cast(Any, justify))
    for name in ("CRC32C", "used by"):
        table.add_column(name)
    for line in lines:
        found = line.source.fingerprint
        uses = ", ".join(str(use) for use in line.uses)
        table.add_row(line.name, str(len(line.source.objects)), str(found.size), found.crc32c, uses)
    console.print(table)
