"""Each of Google's rules names where it comes from and when that was read, or is listed as one from
memory (docs/assumptions.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "assumptions.md").read_text()
FROM_MEMORY = set(re.findall(r"^\| `([\w/.]+)`: `(\w+)` \| [^|]+ \|$", PAGE, re.M))
FOLDERS = (
    *("outlast/machines", "outlast/settings", "outlast/cloud", "outlast/spec", "outlast/costs"),
    "components",
)

SOURCE = re.compile(
    r"(?:pages? \"[^\"]{8,}\"|discovery document \w+ (?:v1|beta)|release notes|sample [a-z_-]{8,}"
    r"|Google's (?:own )?(?:list|page|table)|from Google's pages|documentation)"
    r".{0,240}?(?:20[12][0-9]|revision 20[0-9]{6})"
)
"""Something that can be looked up, and a year or a revision."""
CLAIM = re.compile(
    r"\bthe platform(?:'s)?\b.*?\b(?:allow|take|offer|own wait|health checks|give|fix)|"
    r"\b(?:allowed|fixed) by the platform|\b[Wh]hat the platform takes"
)
"""Words with which a constant's description says what Google allows."""

RULES = (
    ("outlast/cloud/compute.py", "OPERATION_WAIT_SEC"),
    ("outlast/cloud/images.py", "RETIRED"),
    ("outlast/cloud/images.py", "WITHOUT_DRIVER"),
    ("outlast/cloud/images.py", "PROJECTS"),
    ("outlast/cloud/recipe.py", "FAMILY_LIMIT"),
    ("outlast/cloud/recipe.py", "DISK_GB_MOST"),
    ("outlast/localcloud/iam/predefined.py", "PREDEFINED_ROLES"),
    ("outlast/machines/families.py", "FAMILIES"),
    ("outlast/machines/machines.py", "STOP_SPOT_SEC"),
    ("outlast/machines/machines.py", "_SHARED_E2_GB"),
    ("outlast/machines/regions.py", "REGIONS"),
    ("outlast/settings/formats.py", "DATA_PATHS_LIMIT"),
    ("outlast/settings/formats.py", "RunMinutes"),
    ("outlast/settings/rules/place.py", "_LABELS_LIMIT"),
    ("outlast/spec/account.py", "ACCOUNT_ID_LIMIT"),
    ("outlast/spec/delivery.py", "VALUE_LIMIT"),
    ("outlast/spec/labels.py", "LIMIT"),
    ("outlast/spec/network_rules.py", "HEALTH_SOURCES"),
    ("outlast/spec/network_rules.py", "IAP_SOURCES"),
    ("outlast/spec/network_rules.py", "SOFT_DELETE_DAYS"),
    ("outlast/spec/network_rules.py", "_BUCKET"),
    ("outlast/spec/secrets.py", "_NAME"),
    ("components/health.py", "INTERVAL_SEC"),
    ("components/healing_group.py", "ZONES_MOST"),
    ("components/metadata.py", "TOTAL_LIMIT"),
    ("components/vm_template.py", "NOTICE_SEC"),
    ("components/vm_template.py", "LOCAL_SSD_GB"),
    ("components/vm_template.py", "HOST_ERROR_SEC"),
    ("components/vm_template.py", "SHORT_RUN_SEC"),
)
"""The rules, by file and name."""


def constants(text: str) -> Iterator[tuple[list[str], str]]:
    """The constants of a module, each with its names and what is written about it: the text below
    it, and the comments in it. If a module's description has sources, they are each one's."""
    tree = ast.parse(text)
    module = ast.get_docstring(tree) or ""
    lines = text.splitlines()
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [one.id for target in targets for one in ast.walk(target) if is_name(one)]
        below = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            below = str(after.value.value)
        inside = [line.split("#", 1)[1] for line in lines[node.lineno - 1 : node.end_lineno]
                  if "#" in line]  # fmt: skip
        said = " ".join([below, *inside])
        yield names, " ".join(f"{said} {module}".split() if "Source" in module else said.split())


def is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def about(file: str, name: str) -> str:
    """What is written about a constant."""
    found = [said for names, said in constants((ROOT / file).read_text()) if name in names]
    assert found, f"{file} has no {name}"
    return found[0]


@pytest.mark.parametrize(("file", "name"), RULES, ids=lambda value: value.rpartition("/")[2])
def test_a_rule_names_its_source_and_date_or_is_listed_as_one_from_memory(file: str, name: str):
    if (file, name) not in FROM_MEMORY:
        assert SOURCE.search(about(file, name)), f"{file}: {name} has no source with a date"


def test_what_is_listed_as_from_memory_exists():
    assert len(FROM_MEMORY) > 5
    for file, name in FROM_MEMORY:
        assert (file, name) in RULES, f"{file}: {name} is not a rule of this test"
        about(file, name)


def test_every_constant_that_says_what_the_platform_allows_is_a_rule():
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            where = file.relative_to(ROOT).as_posix()
            for names, said in constants(file.read_text()):
                listed = any((where, name) in RULES for name in names)
                assert listed or not CLAIM.search(said), f"{where}: {names} is not in RULES"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "Source: , 2026",
        "Source: a page",
        '(page "", read in November 2026)',
        '(page "About Local SSD disks")',
        "As of November 2026",
        "discovery document compute v1",
    ],
)
def test_a_source_without_a_page_or_a_date_is_none(said: str):
    assert not SOURCE.search(said)


def test_a_new_rule_is_found():
    planted = 'MOST = 3\n"""How many the platform allows."""\n'
    assert [(names, bool(CLAIM.search(said))) for names, said in constants(planted)] == [
        (["MOST"], True)
    ]
