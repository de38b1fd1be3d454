"""Changes that someone might make to a valid text: to its structure, or to its bytes.

Each is made by one seed, so that any of them can be left out when a failure is made smaller.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

STRUCTURED = 0.8
"""How often a change is one of the JSON, and not of its bytes."""

NUMBERS = (0, -1, 1, 2, 7, 64, 255, 625, 1 << 31, 1 << 53, 1 << 62, 1 << 63, -(1 << 63), 10**400)
FLOATS = (0.0, -0.0, 1e308, -1.5, 5e-324)
TEXTS = (
    *(
        "",
        ".",
        "..",
        "/",
        "../x",
        "a/../../b",
        "/etc/passwd",
        "a\\b",
        "\0",
        "a\0b",
        "\n",
        "\x1b[2J",
    ),
    *("\ud800", "é", "x" * 3000, "NaN", "Infinity", "-inf", "0" * 64, "f" * 64, "F" * 64, "g" * 64),
    *("CON", "~", "$(id)", "%s", "{0}", "t000001/result/", "t000001/s000000000001-0a/", "gs://b/x"),
    *("2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "2026-13-01T00:00:00Z", "9999"),
    *("<f4", "|O", "<U1000000000", "|V0", "<f4,<f4", "bfloat16", "bytes", "{}", '{"names":[]}'),
    *("done", "failed", "open", "start", "end", "torch.Module", "sklearn.estimator", "os.system"),
    *("numpy.BitGenerator", "containers.items", "containers.object", "sklearn.object", "random"),
    *("sklearn.linear_model._sgd_fast.Hinge", "sklearn.base.BaseEstimator", "subprocess.Popen"),
    *("sklearn.externals.array_api_compat.numpy.memmap", "gzip.GzipFile", "MT19937", "builtins"),
    *("collections:OrderedDict", "tests.loop.hostile:Note", "signal:Signals", "os:_Environ"),
)
KEYS = (
    *("$array", "$tensor", "$jax", "$same", "$object", "$new", "$tuple", "$dict", "$value"),
    *("$bytes", "$float", "$scalar", "$blob", "class", "items", "pairs", "members", "attributes"),
    *("__class__", "__dict__", "__reduce__", "format", "state", "instead", "began", "order"),
)


def mutated(data: bytes, seeds: Sequence[int]) -> bytes:
    """The text with the changes of these seeds, one after the other."""
    for seed in seeds:
        draw = random.Random(seed)
        if draw.random() < STRUCTURED:
            found = _structured(data, draw)
            if found is not None:
                data = found
                continue
        data = _bytes(data, draw)
    return data


def _structured(data: bytes, draw: random.Random) -> bytes | None:
    """The text with another JSON value, or one of its lines; None if it is not JSON."""
    lines = data.splitlines() if data.count(b"\n") > 1 else [data]
    at = draw.randrange(len(lines)) if lines else 0
    try:
        same = json.dumps(json.loads(lines[at])).encode("ascii")
        text = json.dumps(_changed(json.loads(lines[at]), draw)).encode("ascii")
    except (ValueError, RecursionError, IndexError):
        return None
    if draw.random() < 0.05:
        text = _twice(text, draw)
    if text == same:  # what was drawn is what stood there
        return None
    lines[at] = text
    return b"\n".join(lines) + b"\n"


def _twice(text: bytes, draw: random.Random) -> bytes:
    """With a key that an object has already."""
    places = [i for i, byte in enumerate(text) if byte == ord("{")]
    at = draw.choice(places) + 1 if places else 0
    key = draw.choice((b'"format":7,', b'"path":"..",', b'"$array":0,', b'"a":1,'))
    return text[:at] + key + text[at:] if at else text


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a value with each of its keys."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        held = left.pop()
        if isinstance(held, dict):
            found += [(held, key) for key in held]
            left += held.values()
        elif isinstance(held, list):
            found += [(held, i) for i in range(len(held))]
            left += held
    return found


def _changed(value: Any, draw: random.Random) -> Any:
    there = places(value)
    if not there or draw.random() < 0.01:
        return _other(value, draw)
    held, key = draw.choice(there)
    _CHANGES[draw.randrange(len(_CHANGES))](held, key, there, draw)
    return value


def _replace(held: Any, key: Any, there: Any, draw: random.Random) -> None:
    held[key] = _other(held[key], draw)


def _remove(held: Any, key: Any, there: Any, draw: random.Random) -> None:
    del held[key]


def _rename(held: Any, key: Any, there: Any, draw: random.Random) -> None:
    if isinstance(held, dict):
        held[draw.choice((*KEYS, *TEXTS[:20]))] = held.pop(key)


def _insert(held: Any, key: Any, there: Any, draw: random.Random) -> None:
    news = _other(None, draw)
    if isinstance(held, dict):
        held[draw.choice((*KEYS, *TEXTS))] = news
    else:
        held.insert(draw.randrange(len(held) + 1), news)


def _graft(held: Any, key: Any, there: Any, draw: random.Random) -> None:
    """Put a value from another place here."""
    other, at = draw.choice(there)
    held[key] = json.loads(json.dumps(other[at]))


def _wrap(held: Any, key: Any, there: Any, draw: random.Random) -> None:
    inner = held[key]
    for _ in range(draw.choice((1, 1, 2, 50, 130, 900))):
        inner = [inner] if draw.random() < 0.5 else {draw.choice(KEYS): inner}
    held[key] = inner


def _repeat(held: Any, key: Any, there: Any, draw: random.Random) -> None:
    if isinstance(held, list):
        held[key:key] = [held[key]] * draw.choice((1, 2, 40))


def _swap(held: Any, key: Any, there: Any, draw: random.Random) -> None:
    other, at = draw.choice(there)
    if not isinstance(other[at], dict | list) and not isinstance(held[key], dict | list):
        held[key], other[at] = other[at], held[key]


_CHANGES: tuple[Callable[[Any, Any, Any, random.Random], None], ...] = (
    *(_replace, _replace, _replace, _remove, _rename, _insert, _graft, _wrap, _repeat, _swap),
)


def _other(value: Any, draw: random.Random) -> Any:
    """Another value, often of the same type."""
    same = draw.random() < 0.6
    if same and type(value) is int:
        return draw.choice((value + 1, value - 1, -value, value * 1000, *NUMBERS))
    if same and isinstance(value, str):
        return draw.choice((value[:-1], value + "x", value.upper(), value * 2, *TEXTS))
    return draw.choice(
        (
            *(None, True, False, [], {}, [[]], {"": None}, [1, 2, 3]),
            *(draw.choice(NUMBERS), draw.choice(FLOATS), draw.choice(TEXTS), draw.choice(TEXTS)),
            {draw.choice(KEYS): draw.choice((*NUMBERS[:6], *TEXTS[:6]))},
            {draw.choice(KEYS): draw.choice(TEXTS), draw.choice(KEYS): []},
        )
    )


def _bytes(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    kind = draw.randrange(6)
    if kind == 0:
        return data[:at]
    if kind == 1 and data:
        return data[: at - 1] + bytes([draw.randrange(256)]) + data[at:] if at else data
    if kind == 2:
        return (
            data[:at]
            + draw.choice((b"\xff", b"\0", b"\xed\xa0\x80", b"NaN", b"[" * 5000))
            + data[at:]
        )
    if kind == 3:
        return data[:at] + data[draw.randrange(len(data) + 1) :]
    if kind == 4:
        return data + data
    return bytes(draw.randrange(256) for _ in range(draw.choice((0, 1, 40))))
