"""`curves.ipynb`: a small notebook that reads the fetched rows and draws them.

It needs matplotlib and nothing of Outlast's, so that a colleague can run it. Written by the
format's own description (nbformat 4.5, nbformat.readthedocs.io, read 2026-11-30).
"""

import json
from typing import Any

FILE = "curves.ipynb"

_READ = """import json
from pathlib import Path

lines = Path({rows}).read_text(encoding="utf-8").splitlines()
rows = [json.loads(line) for line in lines]
numbers = {{
    name: [
        (row.get("part", ""), row["step"], row[name])
        for row in rows
        if isinstance(row.get(name), (int, float)) and not isinstance(row[name], bool)
    ]
    for name in dict.fromkeys(name for row in rows for name in row)
    if name not in ("step", "part")
}}
numbers = {{name: points for name, points in numbers.items() if points}}
last = ", ".join(f"{{name}} {{points[-1][2]:.4g}}" for name, points in numbers.items())
print(len(rows), "rows;", last)"""
_DRAW = """import matplotlib.pyplot as plt

count = len(numbers)
figure, axes = plt.subplots(count, 1, figsize=(9, 3 * count), squeeze=False)
for axis, (name, points) in zip(axes[:, 0], numbers.items()):
    for part in dict.fromkeys(part for part, _, _ in points):
        own = [(step, value) for of, step, value in points if of == part]
        axis.plot(*zip(*own), label=part or None)
    axis.set_title(name, parse_math=False)
    axis.set_xlabel("step")
    axis.grid(alpha=0.3)
figure.tight_layout()
plt.show()"""
_MODEL = """The result's files are in this folder. With Outlast installed, `outlast.open({url})`
reads the run itself, and `.load("model")` its model."""


def of(name: str, url: str, rows_file: str) -> str:
    """The notebook's text, the same for the same run."""
    # A name in quotes is a text for Markdown and Python, whatever it has in it.
    cells = [
        _cell("markdown", "title", f"# {_code(name)}\n\n{_code(url)}, each step once."),
        _cell("code", "read", _READ.format(rows=json.dumps(rows_file))),
        _cell("code", "draw", _DRAW),
        _cell("markdown", "model", _MODEL.format(url=json.dumps(url).replace("`", "'"))),
    ]
    document = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1) + "\n"


def _code(text: str) -> str:
    return f"`{text.replace('`', ' ')}`"


def _cell(kind: str, name: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": name,
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}
