"""The environment that an engine of ours runs in, and what is said where there is none."""

import json
from pathlib import Path

import pytest
import yaml

from outlast.cli import engine
from outlast.cli.cloud import LocalCloud
from outlast.cli.errors import EngineError, NoPlugin

LEFTOVERS = {
    "PULUMI_BACKEND_URL": "s3://of-another-team",
    "PULUMI_ACCESS_TOKEN": "pul-1",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
    "GOOGLE_OAUTH_ACCESS_TOKEN": "ya29.real",
    "GOOGLE_PROJECT": "production",
    "CLOUDSDK_CORE_PROJECT": "production",
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1",
    "HTTPS_PROXY": "http://proxy.example:3128",
    "http_proxy": "http://proxy.example:3128",
    "no_proxy": "localhost",
    "PYTHONPATH": "/somewhere",
    "OUTLAST_ROOT": "/somewhere",
}


def test_no_leftover_backend_credential_project_or_proxy_comes_through():
    environ = {**LEFTOVERS, "HOME": "/home/me", "PATH": "/usr/bin", "OUTLAST_CACHE": "/cache"}
    assert engine.scrubbed(environ) == {
        "HOME": "/home/me",
        "PATH": "/usr/bin",
        "OUTLAST_CACHE": "/cache",
    }


def test_a_shell_unsets_variables_without_a_replacement():
    variables = {"PULUMI_BACKEND_URL": "file:///x", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:2"}
    unset = engine.foreign(LEFTOVERS, variables)
    assert unset == set(LEFTOVERS) - set(variables)


def test_enter_replaces_the_whole_environment(monkeypatch):
    kept = {"HOME": "/home/me"}
    environ = dict(LEFTOVERS) | kept
    monkeypatch.setattr(engine.os, "environ", environ)
    monkeypatch.setattr(engine, "scrubbed", lambda: {"HOME": "/home/me"})
    engine.enter({"PULUMI_HOME": "/p"})
    assert environ == {"HOME": "/home/me", "PULUMI_HOME": "/p"}


def test_without_an_engine_on_path_it_is_one_sentence(tmp_path):
    with pytest.raises(EngineError, match="pulumi: is not on PATH; take over"):
        engine.run_engine(["stack", "ls"], env={"PATH": str(tmp_path)})


SAID = (
    "error: pulumi-python:dynamic:RunPin resource 'run': property run value {1c461404da} has a "
    "problem: run 02ad602e43 is open at step 320; undo the change"
)


def failed(folder, expected):
    """What is said of a command that printed this and failed."""
    (folder / "said").write_text(expected)
    pulumi = folder / "pulumi"
    pulumi.write_text(f"#!/bin/sh\n/bin/cat {folder}/said\nexit 1\n")
    pulumi.chmod(0o755)
    with pytest.raises(EngineError) as caught:
        engine.run_engine(["preview"], env={"PATH": str(folder)})
    return str(caught.value)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (SAID, "run 02ad602e43 is open at step 320; undo the change"),
        ("error: outlast:zone 'x': must be a zone", "outlast:zone 'x': must be a zone"),
    ],
)
def test_an_error_is_its_sentence_alone(tmp_path, said, expected, as_json):
    text = f"Previewing update (dev):\n{said}\n"
    if as_json:
        text = json.dumps({"diagnostics": [{"severity": "error", "message": f"{said}\n"}]})
    assert failed(tmp_path, text) == expected


def test_the_engine_of_each_trial_has_its_own_folder_and_leaves_the_project_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine, "project", lambda: tmp_path)
    definition = {"name": "outlast", "runtime": "python"}
    (tmp_path / "Pulumi.yaml").write_text(yaml.safe_dump(definition))
    rates = {"lr--0123456789": 0.1, "lr--abcdef0123": 0.2}
    for stack, rate in rates.items():
        config = {"outlast:args": {"learning-rate": rate}}
        engine.Stack(stack, config, folder=engine.settings_folder(stack))
    folders = sorted((tmp_path / ".outlast" / "sweeps" / "lr").iterdir())
    assert [folder.name for folder in folders] == list(rates)
    for folder, rate in zip(folders, rates.values(), strict=True):
        (settings,) = folder.glob("Pulumi.lr--*.yaml")
        config = yaml.safe_load(settings.read_text())["config"]
        assert config == {"outlast:args": {"learning-rate": rate}}
        assert (folder / "project").resolve() == tmp_path
        assert yaml.safe_load((folder / "Pulumi.yaml").read_text())["main"] == "project"
    assert {one.name for one in tmp_path.iterdir()} == {".outlast", "Pulumi.yaml"}
    assert yaml.safe_load((tmp_path / "Pulumi.yaml").read_text()) == definition


def test_a_failure_without_an_error_names_the_command(tmp_path):
    assert failed(tmp_path, "something else\n") == "pulumi preview: something else"


def installed(folder, name=engine.PLUGIN):
    """An executable in a folder, as an installed plugin is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_a_plugin_on_path_comes_before_the_engines(tmp_path):
    on_path = installed(tmp_path / "bin")
    installed(tmp_path / ".pulumi/plugins/resource-gcp-v10.2.0")
    environ = {"HOME": str(tmp_path)}
    assert engine.find_plugin(f"/usr/bin:{tmp_path}/bin", environ) == on_path


def test_of_the_engines_plugins_the_newest_whole_one_is_used(tmp_path):
    home, other = tmp_path / ".pulumi/plugins", tmp_path / "other/plugins"
    newest = installed(home / "resource-gcp-v10.2.0")
    installed(home / "resource-gcp-v9.35.0")
    installed(home / "resource-gcp-v11.0.0")
    (home / "resource-gcp-v11.0.0.partial").touch()
    installed(home / "resource-gcp-native-v12.0.0")
    (home / "resource-gcp-v13.0.0").mkdir()
    environ = {"HOME": str(tmp_path), "PULUMI_HOME": str(tmp_path / "other")}
    assert engine.find_plugin("/usr/bin", environ) == newest
    newer = installed(other / "resource-gcp-v10.3.0")
    assert engine.find_plugin("/usr/bin", environ) == newer


def test_without_the_plugin_it_is_one_sentence_with_the_remedy(tmp_path):
    environ = {"HOME": str(tmp_path), "PULUMI_HOME": str(tmp_path / "other")}
    with pytest.raises(NoPlugin) as caught:
        engine.find_plugin("/usr/bin", environ)
    said = str(caught.value)
    assert "pulumi-resource-gcp is neither on PATH nor in" in said
    assert f"{tmp_path}/other/plugins or {tmp_path}/.pulumi/plugins" in said
    assert "pulumi plugin install resource gcp 1" in said and "leave out --provider" in said


def test_the_environment_attaches_the_stand_in_or_finds_the_plugin(tmp_path):
    parts = engine.Parts("/e/pulumi", "/hosts", "/image", "/wheels", "/venv/bin/python")
    cloud = LocalCloud(tmp_path, 1, 2, 3)
    default = cloud.variables(parts, tmp_path / "p", "/usr/bin")
    assert default["PULUMI_DEBUG_PROVIDERS"] == "gcp:3"
    assert default["PATH"] == "/hosts:/e:/venv/bin:/usr/bin"
    plugin = cloud.variables(parts, tmp_path / "p", "/usr/bin", Path("/plugins/it"))
    assert "PULUMI_DEBUG_PROVIDERS" not in plugin
    assert plugin["PULUMI_GCP_SKIP_REGION_VALIDATION"] == "true"
    assert plugin["PATH"] == "/plugins:/hosts:/e:/venv/bin:/usr/bin"
    same = default.keys() - {"PATH", "PULUMI_DEBUG_PROVIDERS"}
    assert {key: plugin[key] for key in same} == {key: default[key] for key in same}
