"""The environment that an engine of ours runs in, and what is said where there is none."""

import json

import pytest

from outlast.cli import engine
from outlast.cli.errors import EngineError

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
        ("error: no stack named 'x' found", "no stack named 'x' found"),
    ],
)
def test_an_error_is_its_sentence_alone(tmp_path, said, expected, as_json):
    text = f"Previewing update (dev):\n{said}\n"
    if as_json:
        text = json.dumps({"diagnostics": [{"severity": "error", "message": f"{said}\n"}]})
    assert failed(tmp_path, text) == expected


def test_a_failure_without_an_error_names_the_command(tmp_path):
    assert failed(tmp_path, "something else\n") == "pulumi preview: something else"
