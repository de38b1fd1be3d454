"""A folder with a project: what is installed of it, and whether it is built."""

import pytest

from outlast.spec import project
from outlast.spec.project import Need
from outlast.spec.requirements import Files, RequirementsError

UV = "[project]\nname='x'\nversion='0'\ndependencies=['six', 'numpy>=2']\n"
SETUPTOOLS = "[build-system]\nrequires=['setuptools']\nbuild-backend='setuptools.build_meta'\n"
HATCH = "[build-system]\nrequires=['hatchling']\nbuild-backend='hatchling.build'\n"
POETRY = "[build-system]\nrequires=['poetry-core']\nbuild-backend='poetry.core.masonry.api'\n"


def read(pyproject: str = "", names: str = "", **files: str) -> Need:
    named = {name: b"" for name in names.split()}
    named |= {name.replace("_", "."): text.encode() for name, text in files.items()}
    if pyproject:
        named["pyproject.toml"] = pyproject.encode()
    return project.read(".", Files(named))


@pytest.mark.parametrize(
    ("pyproject", "names"),
    [
        (UV, "train.py prepare.py"),
        (UV, "models/a.py data/b.csv train.py"),
        (UV + SETUPTOOLS, "train.py prepare.py"),
        (UV + "[tool.uv]\npackage=false\n", "x.py"),
        (UV + HATCH, "train.py prepare.py"),
        (UV + POETRY + "[tool.poetry]\npackage-mode=false\n", "x/__init__.py"),
    ],
)
def test_a_project_that_was_never_meant_to_be_built_has_its_dependencies_installed(
    pyproject, names
):
    found = read(pyproject, names)
    assert not found.is_project and found.unbuilt
    assert found.requirements is not None and found.requirements.text == "numpy>=2\nsix\n"
    # A requirements file beside it counts instead.
    found = read(pyproject, names, requirements_txt="scipy\n")
    assert not found.is_project and found.requirements is not None
    assert found.requirements.text == "scipy\n"


@pytest.mark.parametrize(
    ("pyproject", "names"),
    [
        (UV, "x.py"),
        (UV, "x/__init__.py train.py prepare.py"),
        (UV, "x/a.py tests/b.py docs/c.md scripts/d.py"),
        (UV, "src/a/b.py src/c/d.py"),
        (UV, "train.py setup.py prepare.py"),
        (UV, ""),
        (UV + SETUPTOOLS + "[tool.setuptools]\npy-modules=['train']\n", "train.py prepare.py"),
        (UV + SETUPTOOLS + "[tool.setuptools.packages.find]\n", "a/x.py b/x.py"),
        (UV + HATCH, "src/x/__init__.py"),
        (UV + HATCH, "x/__init__.py y/__init__.py"),
        (UV + HATCH + "[tool.hatch.build.targets.wheel]\npackages=['y']\n", "y/__init__.py"),
        (UV + POETRY, "x/__init__.py"),
    ],
)
def test_a_project_that_can_be_built_is(pyproject, names):
    found = read(pyproject, names)
    assert found.is_project and not found.with_dependencies and not found.unbuilt
    assert read(pyproject, names, requirements_txt="scipy\n").is_project


def test_what_setup_cfg_packages_counts():
    tools, packages = "[flake8]\nmax-line-length=100\n", "[options]\npackages=find:\n"
    files = {"pyproject.toml": UV, "a.py": "", "b.py": ""}

    def is_built(text: str) -> bool:
        named = {name: data.encode() for name, data in {**files, "setup.cfg": text}.items()}
        return project.read(".", Files(named)).is_project

    assert not is_built(tools) and is_built(packages)


def test_a_build_tells_what_cannot_be_read():
    for found in (
        read("[project]\nname='x'\ndynamic=['dependencies']\n", "x.py"),
        read(POETRY + "[tool.poetry]\nname='x'\n", "x.py"),
        read("", "setup.py"),
    ):
        assert found.is_project and found.with_dependencies and found.requirements is None


def test_a_line_for_the_project_itself_builds_it_once():
    found = read(UV, "x.py", requirements_txt="-e .\nscipy\n")
    assert not found.is_project and found.requirements is not None
    assert found.requirements.locals == (".",)


def test_settings_of_tools_beside_requirements_are_no_project():
    assert read("[tool.ruff]\n", "a.py b.py", requirements_txt="six\n").is_project is False


@pytest.mark.parametrize(
    ("pyproject", "names", "said"),
    [
        ("", "train.py", ".: holds neither pyproject.toml nor requirements.txt; set outlast:req"),
        ("", "environment.yml", "environment.yml: is a conda file"),
        ("", "uv.lock", "uv export"),
        ("[tool.ruff]\n", "", "pyproject.toml: has no [project]"),
        ("[project\n", "", "pyproject.toml: is not valid TOML"),
        ("[tool.poetry]\nname='x'\n", "", "has [tool.poetry] and no [build-system]"),
        ("[project]\nname='x'\ndependencies='six'\n", "", "must be a list of texts"),
        (UV + "dynamic=true\n", "", "project.dynamic: must be a list of texts"),
        ("[project]\nname='x'\ndependencies=[1]\n", "x.py", "project.dependencies[0] 1: must be"),
        (
            "[project]\nname='x'\ndependencies=['six', 'numpy=2']\n",
            "x.py",
            "pyproject.toml project.dependencies[1] 'numpy=2': is conda's form",
        ),
        (
            "[project]\nname='x'\ndependencies=['c @ git+https://github.com/o/c']\n",
            "x.py",
            "names no commit, and must name a commit by its 40 digits",
        ),
        (
            UV + "[tool.uv.sources]\nSix={git='https://github.com/o/six'}\n",
            "x.py",
            "tool.uv.sources.Six: pip does not read it, and would install another Six",
        ),
        (
            POETRY + "[tool.poetry]\nname='x'\npackage-mode=false\n",
            "",
            "package-mode = false, and its dependencies are not in [project]",
        ),
        ("[project]\nname='x'\n", "train.py prepare.py", "and it has no dependencies"),
    ],
)
def test_what_cannot_be_installed_is_a_sentence(pyproject, names, said):
    with pytest.raises(RequirementsError) as caught:
        read(pyproject, names)
    assert said in str(caught.value)


def test_a_file_without_a_package_is_refused_unless_a_project_is_beside_it():
    with pytest.raises(RequirementsError, match="asks for no package; name one"):
        read("", "", requirements_txt="# none yet\n")
    found = read(UV, "x.py", requirements_txt="# none yet\n")
    assert found.is_project and found.requirements is not None and not found.requirements.wanted
