"""The page of `outlast report`: what it says, and that nothing from a bucket is more than text."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason
from outlast.bucket.store import Damaged
from outlast.cli import runs
from outlast.cli.app import cli
from outlast.cli.errors import OperateError
from outlast.cli.report import facts, page
from tests.cli.report.planted import ATTEMPTS, LOST, RUN, TOTAL, Planted
from tests.cli.test_runs import trained  # noqa: F401  a fixture

HOSTILE = (
    "</style></title></pre></svg><script>alert(1)</script><img src=x onerror=alert(1)>"
    "\"' onload=alert(1) {{7*7}} {% raw %} &lt;b&gt; <!-- javascript:alert(1) \u202egpj\x1b[31m"
)
TOKEN = "ghp_" + "Z9" * 18


class Seen(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.shapes: set[tuple[str, ...]] = set()
        self.values: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shapes.add((tag, *sorted(name for name, _ in attrs)))
        for name, value in attrs:
            self.values.setdefault(name, []).append(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def made(run: Planted) -> str:
    run.clock.seconds = 5000
    return page.html(facts.read(run.place))


@pytest.fixture(scope="module")
def plain_page() -> str:
    return made(Planted().whole())


@pytest.fixture(scope="module")
def hostile_page() -> str:
    return made(Planted(text=HOSTILE).whole())


def test_it_says_what_happened_how_good_it_is_and_what_it_cost(plain_page: str) -> None:
    seen = Seen(plain_page).text
    assert f"The run is done at step {TOTAL:,} of {TOTAL:,}, after 1 h 15 min on 4 VMs." in seen
    assert (
        f"The platform interrupted it 3 times (2 preempted, 1 vm-lost): {LOST} steps were repeated,"
        in seen
    )
    # 71 s of the second attempt's 900 made 60 of its 760 steps; three starts and a failed boot took
    # a minute each.
    assert "VMs spent 5 min 11 s on starting again and repeating steps" in seen
    assert "8 min passed without a VM, which costs nothing" in seen
    assert re.search(r"Starting again and repeating cost \$0\.003\d of \$0\.04\d\d", seen)
    assert "Best checkpoint: step 2,700 with test_accuracy 0.9664, loss 0.1" in seen
    assert "changed: args.learning-rate 0.1 → 0.05" in seen
    for term, (_, _, _, first, last, reason) in enumerate(ATTEMPTS, 1):
        row = f"{reason or Reason.VM_LOST} {first:,} {last:,} {LOST if term == 2 else 0}"
        assert row in seen, term
    assert "Preemptions: 3 cost $0.003" in seen and "A committed step: $0.0000" in seen
    assert "On demand: $0." in seen and "less with Spot." in seen
    assert "infrastructure recovery from disruption" in seen
    assert "× n2-standard-2 Spot" in seen and "List prices of" in seen
    assert "learning-rate 0.05" in seen and "1,234,567 bytes" in seen and "numpy 2.4.6" in seen
    assert "attempt 4: epoch 59 loss" in seen and "attempt 4: epoch 19 loss" not in seen
    assert f"experiments/first/{RUN}/attempts/000004/log/" in seen


def test_the_page_has_a_chart_for_each_metric_with_the_resumes(plain_page: str) -> None:
    seen = Seen(plain_page)
    labels = seen.values["aria-label"]
    assert [one for one in labels if one.endswith(" by step")] == [
        "test_accuracy by step",
        "loss by step",
        "epoch by step",
    ]
    assert plain_page.count("<title>resume 2</title>") == 3
    assert plain_page.count("<title>changed 3</title>") == 3
    assert len(seen.values["points"]) == 3


def test_nothing_from_the_bucket_is_more_than_text(plain_page: str, hostile_page: str) -> None:
    plain, hostile = Seen(plain_page), Seen(hostile_page)
    # The same kinds of elements with the same attributes, and a cell of an error's message.
    assert hostile.shapes - plain.shapes <= {("div", "class"), ("td", "class", "colspan")}
    assert hostile.comments == plain.comments == [" outlast report "]
    names = {name for shape in hostile.shapes for name in shape[1:]}
    assert not [name for name in names if name.startswith("on") or name in ("style", "href", "src")]
    tags = {shape[0] for shape in hostile.shapes}
    assert not tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form", "a"}
    for name in ("class", "id", "points", "x", "width"):
        assert "alert" not in " ".join(hostile.values.get(name, ()))
    # In each field that a VM writes freely, it is there as text.
    for field in ("name", "flag", "lib", "survive", "mnist"):
        assert f"{field}</style></title>" in hostile.text, field
    assert hostile.text.count("<script>alert(1)</script>") >= 10
    assert "{{7*7}} {% raw %} &lt;b&gt;" in hostile.text


def test_control_and_direction_characters_are_visible(hostile_page: str) -> None:
    assert not [char for char in hostile_page if not char.isprintable() and char != "\n"]


def test_the_policy_allows_its_own_style_alone(plain_page: str) -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", plain_page, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = Seen(plain_page).values["content"]
    rules = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
    assert rules.format(digest) in policy
    assert not re.findall(r"url\(|@import|@font-face|https?://", plain_page)


def test_a_secret_is_nowhere_on_the_page() -> None:
    text = made(Planted(text=f"x {TOKEN} y").whole())
    assert TOKEN not in text and "(not shown: a GitHub token)" in text
    assert "projects/p/secrets" not in text
    assert "from Secret Manager WANDB_API_KEY" in Seen(text).text


def test_a_run_in_training_shows_what_it_has_so_far() -> None:
    run = Planted()
    run.attempt(1)
    run.attempt(2)
    run.head(term=2)
    run.clock.seconds = 2410
    found = facts.read(run.place)
    seen = Seen(page.html(found)).text
    assert "first running" in seen and "so far." in seen
    assert "The run is running at step 1,760 of 3,000, after 40 min" in seen
    assert found.curves.last_step == 1700 and "up to the newest checkpoint" in seen


def test_a_run_without_an_attempt_and_one_in_a_folder(trained: Path) -> None:  # noqa: F811
    run = Planted()
    run.put(0, run.layout.boot("1", "b1"), b"{}")
    seen = Seen(made(run)).text
    assert "no VM has trained yet" in seen and "Metrics" not in seen
    seen = Seen(page.html(facts.read(runs.find(trained / "run")))).text
    assert "run done" in seen and "The run is done at step 20" in seen
    assert "is in a folder and has no VMs" in seen and "Not counted" in seen
    assert "score by step" not in seen and "Best checkpoint: step 10 with" in seen


def test_what_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Planted().whole()
    get = run.store.get

    def torn(path: str, **how: object) -> object:
        if "/metrics/" in path or "/log/" in path:
            raise Damaged(f"{path}: torn")
        return get(path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(run.store, "get", torn)
    found = facts.read(run.place)
    assert len(found.problems) == 5
    seen = Seen(page.html(found)).text
    assert "Not everything could be read." in seen and "000000.jsonl: torn" in seen
    assert "The run is done at step" in seen


def test_a_very_long_run_stays_small() -> None:
    found = facts.read(Planted().whole().place)
    book = found.status.history
    assert book is not None
    many = tuple(replace(book.attempts[n % 4], from_step=n) for n in range(5000))
    status = replace(found.status, history=replace(book, attempts=many))
    text = page.html(replace(found, status=status))
    assert len(text) < 1_000_000 and "4800 came before" in Seen(text).text
    assert text.count("<title>resume ") + text.count("<title>changed ") == 3 * page.MARKED_MAX


def outlast(*words: str, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.stdout, done.stderr


def test_the_command_writes_a_file_and_replaces_only_reports(
    trained: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = str(trained / "run")
    assert outlast("report", run)[0] == "report-run.html\n"
    assert outlast("report", run, "-o", "report-run.html")[0] == "report-run.html\n"
    assert [file.name for file in tmp_path.iterdir()] == ["report-run.html"]
    assert (tmp_path / "report-run.html").read_text().startswith(page.BEGIN)
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(OperateError, match="exists and is not a report, so it is kept"):
        page.write("x", tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "mine"
    outlast("report", run, "-o", "mine.html", code=1)
    outlast("report", run, "-o", "no/such/folder.html", code=1)
    shown = json.loads(outlast("report", run, "--json")[0])
    assert (shown["state"], shown["step"], shown["best"][0]["step"]) == ("done", 20, 10)
    assert shown["goodput"] is None and shown["costs"] is None
