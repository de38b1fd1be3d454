"""The pages on reviewing a change: the pipelines are YAML, and every command and flag exists."""

import json
import re
import shlex
from collections.abc import Iterator

import yaml

from outlast.base.folders import PACKAGE
from outlast.cli.app import cli
from outlast.cli.review import rules
from tests.cli.called import command_of

ROOT = PACKAGE.parent

PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("changes.md", "teams.md"))
PIPELINES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def shell_lines() -> Iterator[str]:
    """Every line of the page that is typed or run by a pipeline."""
    github, gitlab = PIPELINES
    for step in github["jobs"]["review"]["steps"]:
        yield from step.get("run", "").splitlines()
    yield from gitlab["review"]["script"] + gitlab["review"]["after_script"]
    for line in PAGE.splitlines():
        command = re.fullmatch(r"    (?:\$ )?((?:outlast|pulumi|make) .*)", line)
        if command:
            yield command[1]
    # Those within a sentence may be broken over two lines.
    for text in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)):
        command = " ".join(text.split())
        if re.match(r"(?:outlast|pulumi) [a-z]", command):
            yield command


def commands(program: str) -> list[list[str]]:
    """The words behind a program's name, wherever the page has it, without what is redirected."""
    found = []
    for line in shell_lines():
        words = shlex.split(line.replace("# ", " # "), comments=True)
        if words and words[0].rpartition("/")[2] == program:
            found.append([word for word in words[1:] if word != ">" and ".md" not in word])
    return found


def test_both_pipelines_review_and_keep_the_exit_code():
    github, gitlab = PIPELINES
    steps = github["jobs"]["review"]["steps"]
    assert github[True] == "pull_request"  # YAML reads `on` as a truth value, and GitHub does not
    assert github["permissions"]["pull-requests"] == "write"
    review = next(at for at, step in enumerate(steps) if "outlast preview" in step.get("run", ""))
    assert "|" not in steps[review]["run"] and "continue-on-error" not in steps[review]
    assert steps[review + 1]["if"] == "always()" and "review.md" in steps[review + 1]["run"]
    assert any("outlast preview" in line for line in gitlab["review"]["script"])
    assert "review.md" in gitlab["review"]["after_script"][0]
    assert "allow_failure" not in gitlab["review"]


def test_every_command_of_ours_exists_with_its_flags():
    found = commands("outlast")
    assert {"preview", "resume"} <= {words[0] for words in found}
    for name, *words in found:
        command = command_of([name])
        assert command is not cli, name
        flags = {flag for param in command.params for flag in param.opts}
        wanted = {word for word in words if word.startswith("--")}
        assert wanted <= flags, (name, wanted - flags)


def test_every_target_of_make_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for words in commands("make") for target in words}
    assert "setup" in targets and "policy-setup" in targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_example_of_limits_is_one(tmp_path):
    (text,) = re.findall(r"^    \{\n(?:    .*\n)+?    \}$", PAGE, re.MULTILINE)
    path = tmp_path / "limits.json"
    path.write_text(text)
    config = rules.read_config(path)
    assert config.limits.gpus == json.loads(text)["gpu-ceiling"]["gpus"]
    assert config.level("external-ip") == "advisory"


def test_the_table_of_rules_names_every_rule():
    table = PAGE.partition("| rule | refuses |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(rules.load().NAMES)


def test_the_page_names_the_engines_commands():
    """tests/engine/test_preview.py asks the engine whether it has their flags."""
    assert ["preview", "--policy-pack", "policy"] in commands("pulumi")
