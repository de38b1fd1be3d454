"""A report in a real browser: it loads nothing, runs nothing, and fits on a phone."""

import json
import threading
from pathlib import Path

import pytest

from outlast.cli.report import facts, page, sweep
from tests.browser import browser, needs_browser, served
from tests.cli.report.planted import Planted
from tests.cli.report.test_sweep import trained
from tests.cli.sweep.conftest import world  # noqa: F401  a fixture
from tests.cli.sweep.made import World

pytestmark = [needs_browser, pytest.mark.timeout(400)]

PAGE_SEC = 150.0
OUTER = """<!doctype html><title>outer</title><script>
const measure = async (name, width) => {
  const frame = document.createElement('iframe');
  frame.width = width, frame.height = 3000, frame.src = name;
  await new Promise(done => { frame.onload = done; document.body.append(frame); });
  const page = frame.contentDocument;
  const small = [...page.querySelectorAll('p, td, th, li, text')].filter(
    one => parseFloat(frame.contentWindow.getComputedStyle(one).fontSize) < 10.9);
  const wide = [...page.querySelectorAll('body *')].filter(one =>
    one.getBoundingClientRect().right > width + 1 && !one.closest('svg'));
  return {
    title: page.title, width: page.documentElement.scrollWidth, small: small.length,
    wide: wide.map(one => one.outerHTML.slice(0, 200)),
    curves: page.querySelectorAll('polyline').length,
    styled: frame.contentWindow.getComputedStyle(page.querySelector('.tile')).borderRadius,
  };
};
addEventListener('load', async () => {
  const found = {};
  for (const name of ['plain', 'hostile', 'sweep', 'open'])
    for (const width of [375, 1280]) found[`${name} ${width}`] = await measure(`/${name}`, width);
  await new Promise(done => setTimeout(done, 500));
  await fetch('/done', {method: 'POST', body: JSON.stringify(found)});
});
</script><body>"""


def test_pages_load_nothing_run_nothing_and_fit(
    tmp_path: Path,
    world: World,  # noqa: F811
) -> None:
    """The last page has the same hostile text without escaping or policy, so that it is sure that
    the browser would load it."""
    asked: list[str] = []
    found: dict[str, dict[str, object]] = {}
    done = threading.Event()
    pages: dict[str, str] = {"/": OUTER}

    def answer(method: str, path: str, body: str) -> tuple[str, bytes]:
        if path == "/done":
            found.update(json.loads(body))
            done.set()
        elif path not in pages:
            asked.append(path)
        return "text/html", pages.get(path, "").encode()

    with served(answer) as port:
        evil = f"http://127.0.0.1:{port}/evil"
        text = (
            f"</style></title><script>fetch('{evil}-script')</script><img src='{evil}-image'>"
            f"<style>@import '{evil}-style';</style><svg onload=\"fetch('{evil}-load')\">"
            f"<meta http-equiv=refresh content='0;url={evil}-refresh'>"
        )
        pages["/plain"] = page.html(facts.read(Planted().whole().place))
        pages["/hostile"] = page.html(facts.read(Planted(text=text).whole().place))
        pages["/sweep"] = sweep.html(sweep.read(trained(world).objects))
        unsafe = text.replace("refresh", "nothing").replace("evil-", "open-")
        pages["/open"] = f"<!doctype html><title>open</title><div class=tile></div>{unsafe}"
        with browser(tmp_path / "profile", "--hide-scrollbars", f"http://127.0.0.1:{port}/"):
            assert done.wait(PAGE_SEC), asked
    assert {"/open-script", "/open-image", "/open-style"} <= {*asked}
    assert not [path for path in asked if path.startswith("/evil")], asked
    for width in (375, 1280):
        plain, hostile = found[f"plain {width}"], found[f"hostile {width}"]
        assert plain["title"] == "first: done" and hostile["title"] == "first: done"
        assert (plain["curves"], plain["styled"]) == (3, "12px")
        for one in (plain, hostile, found[f"sweep {width}"]):
            assert one["width"] == width and not one["wide"], one
            assert one["small"] == 0, one
