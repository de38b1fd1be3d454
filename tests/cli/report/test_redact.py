"""Nothing that looks like a key is shown."""

import pytest

from outlast.cli.report import redact

TOKEN = "ghp_" + "a1" * 18
KIND = "RSA PRIVATE KEY-----"
KEY = [f"-----BEGIN {KIND}", "MIIEpAIBAAKCAQEA", "secretsecret", f"-----END {KIND}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", f"https://me:{TOKEN}@github.com/x"),
        ("text", f"found {TOKEN} here"),
        ("api-key", "anything"),
        ("hf_token", "anything"),
        ("wandb.password", "anything"),
        ("", "hf_" + "Ab1" * 12),
    ],
)
def test_a_value_that_is_a_key_or_named_as_one_is_hidden(name: str, value: str) -> None:
    shown = redact.text(value, name)
    assert shown.startswith("(not shown: ") and value not in shown


@pytest.mark.parametrize("name", ["tokens-per-step", "max-tokens", "tokenizer", "keyboard"])
def test_other_values_are_shown(name: str) -> None:
    assert redact.text("4096", name) == "4096"


@pytest.mark.parametrize(
    "line",
    ["train --api-key SECRET1 -x", "TOKEN=SECRET1 python t.py", "t --password='SECRET1 x' -v"],
)
def test_a_command_keeps_all_but_its_secrets(line: str) -> None:
    shown = redact.command(line)
    assert "SECRET1" not in shown and "…" in shown


def test_no_line_of_a_key_is_shown() -> None:
    shown = redact.lines(["before", *KEY, "after", f"export T={TOKEN}"])
    assert shown[0] == "before" and shown[2] == "after"
    text = "\n".join(shown)
    assert "secretsecret" not in text and "MII" not in text and TOKEN not in text
    # A key whose end is cut hides the rest.
    assert redact.lines([KEY[0], "one", "two"]) == ["(not shown: a key)"]
