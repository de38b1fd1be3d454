"""Patterns of tokens and keys, so that none is delivered, stored or shown by mistake.

One table for the bundle, the settings, the metadata and the policy pack. The shapes are those that
issuers document so that scanners find them (GitHub, GitLab, Hugging Face, Slack and others give
their tokens a prefix for it). A line with ``pragma: allowlist secret``, which detect-secrets also
reads, is declared free of keys.
"""

import re
from typing import NamedTuple

ALLOWED = b"pragma: allowlist secret"
_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class Look(NamedTuple):
    """One kind of key."""

    what: str
    """With its article, for a sentence."""
    shapes: tuple[re.Pattern[bytes], ...]
    """Each begins with fixed letters, which Python finds at the speed of memory; the character
    before them is not part of a word."""


class Found(NamedTuple):
    """A key in a text."""

    what: str
    line: int
    """From 1."""


def _look(what: str, *shapes: bytes) -> Look:
    return Look(what, tuple(map(re.compile, shapes)))


LOOKS = (
    _look(
        "a private key",
        rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
        rb"PuTTY-User-Key-File-\d: ",
        rb"AGE-SECRET-KEY-1[0-9A-Z]{20}",
        rb"---- BEGIN SSH2 (?:ENCRYPTED )?PRIVATE KEY ----",
        rb"client-key-data[\"']?\s*:\s*[\"']?[A-Za-z0-9+/]{20}",
        # PKCS #8 and PKCS #1 in their binary form
        rb"\x30\x82[\s\S]{2}\x02\x01\x00\x30[\s\S]\x06[\s\S]\x2a\x86\x48",
        rb"\x30\x82[\s\S]{2}\x02\x01\x00\x02\x82[\s\S]{2}\x00",
    ),
    _look("a service account's key", rb'"private_key(?:_id)?\\?"\s*:\s*\\?"[^"\\]'),
    _look(
        "an OAuth client's secret",
        rb'"client_secret"\s*:\s*"[^"$<{]',
        rb"GOCSPX-[0-9A-Za-z_-]{20}",
    ),
    _look("a refresh token", rb'"refresh_token"\s*:\s*"[^"$<{]'),
    _look("an AWS access key", rb"AKIA[0-9A-Z]{16}\b", rb"ASIA[0-9A-Z]{16}\b"),
    _look(
        "an AWS secret key",
        rb"aws_secret_access_key[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}",
        rb"AWS_SECRET_ACCESS_KEY[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}",
    ),
    _look("an Azure storage key", rb"AccountKey=[A-Za-z0-9+/]{40,}"),
    _look("a GitHub token", rb"gh[opsur]_[0-9A-Za-z]{36,}", rb"github_pat_[0-9A-Za-z_]{22,}"),
    _look("a GitLab token", rb"gl[a-z]{2,5}-[0-9A-Za-z_-]{20,}"),
    _look("a Bitbucket token", rb"ATCTT[0-9A-Za-z_=-]{20,}", rb"ATBB[0-9A-Za-z_=-]{20,}"),
    _look("a Google API key", rb"AIza[0-9A-Za-z_-]{35}"),
    _look("a Google access token", rb"ya29\.[0-9A-Za-z_-]{20,}"),
    _look("a Hugging Face token", rb"hf_[0-9A-Za-z]{30,}"),
    _look(
        "a Weights & Biases key",
        rb"wandb_v\d+_[0-9A-Za-z_]{20,}",
        rb"WANDB_API_KEY[\"']?\s*[=:]\s*[\"']?[0-9a-f]{40}",
    ),
    _look("a Pulumi token", rb"pul-[0-9a-f]{40}"),
    _look("a login of netrc", rb"machine\s+\S+\s+login\s+\S+\s+password\s+[^\s{$<%*\"']"),
    _look("a login of Docker", rb'"auth"\s*:\s*"[A-Za-z0-9+/]{12,}={0,2}"'),
    _look(
        "an OpenAI or Anthropic key",
        rb"sk-(?:ant|proj|svcacct|or-v1)-[0-9A-Za-z_-]{20,}",
        rb"sk-[0-9A-Za-z]{32,}",
    ),
    _look("a Kaggle key", rb'"key"\s*:\s*"[0-9a-f]{32}"'),
    _look("a Slack token", rb"xox[abeprs]-[0-9A-Za-z-]{10,}"),
    _look("a Slack webhook", rb"hooks\.slack\.com/services/T\w+/B\w+/\w{16,}"),
    _look("a PyPI token", rb"pypi-AgEI[0-9A-Za-z_-]{20,}"),
    _look("an npm token", rb"npm_[0-9A-Za-z]{36}"),
    _look("a Stripe key", rb"sk_live_[0-9A-Za-z]{20,}", rb"rk_live_[0-9A-Za-z]{20,}"),
    _look("a password in an address", rb"://[^\s/:@'\"$<>{}]+:[^\s/@'\"$<>{}]+@"),
)
_WORD = re.compile(rb"[0-9A-Za-z_]")


def find(text: bytes | str) -> Found | None:
    """The first key in a text or file, of the first kind that matches; None if none was found."""
    data = _bytes(text)
    for what, shapes in LOOKS:
        for match in (match for shape in shapes for match in shape.finditer(data)):
            before = data[match.start() - 1 : match.start()]
            if _WORD.match(before) and _WORD.match(match[0]):
                continue
            start = data.rfind(b"\n", 0, match.start()) + 1
            end = data.find(b"\n", match.end())
            if ALLOWED not in data[start : len(data) if end < 0 else end]:
                return Found(what, data.count(b"\n", 0, match.start()) + 1)
    return None


_PERSON = re.compile(r"(?<=//)[^/?#\s]*@")


def without_person(text: str) -> str:
    """A text in which no address has a user or a password."""
    return _PERSON.sub("…@", text)


_LOOKED_AT = 64


def _without_mark(begin: bytes) -> str | None:
    """UTF-16 by its zeros: of letters every other byte is one."""
    for coding, zeros in (("utf-16-le", begin[1::2]), ("utf-16-be", begin[::2])):
        if len(begin) > 3 and zeros.count(0) * 4 > len(zeros) * 3:
            return coding if begin.count(0) == zeros.count(0) else None
    return None


def _bytes(text: bytes | str) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "replace")
    coding = _BOMS.get(text[:2]) or _without_mark(text[:_LOOKED_AT])
    return text.decode(coding, "replace").encode("utf-8", "replace") if coding else text
