"""Each text field and each key of each record that a page is made of, one after the other, is
markup and a script: the page has no element, attribute or comment more, or the record is refused
with a sentence."""

import json
import re
from collections.abc import Iterator

import pytest

from outlast.bucket.store import Store
from outlast.cli.errors import OperateError
from outlast.cli.report import facts, page, sweep
from tests.cli.report import planted
from tests.cli.report.planted import Planted
from tests.cli.report.test_page import HOSTILE, Seen
from tests.cli.report.test_sweep import trained
from tests.cli.sweep.conftest import world  # noqa: F401  a fixture
from tests.cli.sweep.made import World
from tests.fuzz.mutate import places

OURS = frozenset(
    tag
    for template in page.TEMPLATES.glob("*.html*")
    for tag in re.findall(r"<([a-z0-9]+)", template.read_text(encoding="utf-8"))
)
"""Every element that a page can have."""


def changed(data: bytes) -> Iterator[tuple[str, bytes]]:
    """A record, or the first line of rows, with one text or key replaced, for each of them."""
    first, newline, rest = data.partition(b"\n")
    seen = set()
    for place in range(len(places(json.loads(first)))):
        value = json.loads(first)
        held, key = places(value)[place]
        # Of a list's entries with the same keys one is enough.
        alike = (key, *sorted(held)) if isinstance(held, dict) else type(held[key])
        if alike in seen:
            continue
        seen.add(alike)
        if isinstance(held[key], str):
            held[key] = HOSTILE
            yield f"{key}", json.dumps(value).encode() + newline + rest
        if isinstance(held, dict):
            value = json.loads(first)
            held, key = places(value)[place]
            held[HOSTILE] = held.pop(key)
            yield f"the name of {key}", json.dumps(value).encode() + newline + rest


def assert_harmless(text: str, plain: Seen, where: str) -> None:
    seen = Seen(text)
    tags = {shape[0] for shape in seen.shapes}
    known = OURS | {shape[0] for shape in plain.shapes}
    assert tags <= known and not tags & {"script", "img"}, (where, tags - known)
    for name, values in seen.values.items():
        assert not name.startswith("on") and name not in ("style", "src", "srcdoc"), (where, name)
        if name == "href":
            assert not [value for value in values if ":" in value.partition("/")[0]], where
    assert seen.comments == plain.comments, where
    odd = [char for char in text if not char.isprintable() and char != "\n"]
    assert not odd, (where, odd)


def each_change(store: Store, paths: list[str]) -> Iterator[str]:
    """Makes one change in the store after the other, each from what was there."""
    for path in paths:
        data = store.get(path)[0]
        for where, content in changed(data):
            store.put(path, content)
            yield f"{path}: {where}"
        store.put(path, data)


def test_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "ATTEMPTS", tuple(
        (*times, first // 100, last // 100, why)
        for *times, first, last, why in planted.ATTEMPTS
    ))  # fmt: skip
    monkeypatch.setattr(page.version, "text", lambda: "0.1.0")  # it asks git each time
    run = Planted().whole()
    layout = run.layout
    run.clock.seconds = 5000
    plain = Seen(page.html(facts.read(run.place)))
    paths = [layout.head, layout.attempt_start(4), layout.attempt_end(4), layout.heartbeat(4)]
    paths += [layout.boot("9", "b9"), layout.boot_end("9", "b9"), layout.metrics_piece(4, 0)]
    shown = refused = 0
    for where in each_change(run.store, paths):
        try:
            text = page.html(facts.read(run.place))
        except OperateError as error:
            refused += 1
            assert len(str(error)) < 5000, where
            continue
        shown += 1
        assert_harmless(text, plain, where)
    assert shown > 60 and refused > 60, (shown, refused)


def test_of_a_sweep(world: World) -> None:  # noqa: F811
    objects = trained(world).objects
    plain = Seen(sweep.html(sweep.read(objects)))
    names = [found.path for found in objects.store.list("")]
    chosen = [objects.root + "SWEEP.json", *(name for name in names if "/trials/" in name)][:3]
    shown = refused = 0
    for where in each_change(objects.store, chosen):
        try:
            text = sweep.html(sweep.read(objects))
        except OperateError as error:
            refused += 1
            assert len(str(error)) < 5000, where
            continue
        shown += 1
        assert_harmless(text, plain, where)
    assert shown + refused > 10 and refused, (shown, refused)


def test_a_page_with_one_element_more_is_found() -> None:
    run = Planted().whole()
    run.clock.seconds = 5000
    text = page.html(facts.read(run.place))
    plain = Seen(text)
    for more in (
        "<script>1</script>",
        "<p onload=1>",
        "<a href='javascript:1'>",
        "<!-- x -->",
        "\x1b",
    ):
        with pytest.raises(AssertionError):
            assert_harmless(text.replace("</body>", f"{more}</body>"), plain, more)
