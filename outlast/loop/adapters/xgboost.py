"""XGBoost: a Booster, saved as its raw model (UBJSON) and its configuration.

A Booster that samples rows or columns does not reveal its position in its random numbers, and a
restored one would draw others, so it is refused, and so is gblinear. Train such a model in
segments, each with a fresh Booster made from the raw bytes of the previous one and with its own
seed, and keep those bytes in the state. The same holds for XGBoost's scikit-learn estimators, which
hold a Booster.
"""

# The project's environment may lack XGBoost; a type checker would then resolve it to this file.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

import json
from typing import Any

import xgboost

from outlast.loop import state
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blobs, Node, foreign, kind_of

_SHARES = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")
_DROPS = ("rate_drop", "one_drop")


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    if not isinstance(value, xgboost.Booster):
        return MISSING
    config = _config(value, path)
    _refuse(json.loads(config), path)
    raw = bytes(value.save_raw("ubj"))
    return {
        "$object": "xgboost.Booster",
        "raw": state.capture(raw, path, blobs),
        "config": state.capture(config.encode(), path, blobs),
    }


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if target is MISSING:
        target = xgboost.Booster()
    if not isinstance(target, xgboost.Booster):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds an XGBoost Booster")
    raw = state.restore(MISSING, node["raw"], path, blobs)
    config = state.restore(MISSING, node["config"], path, blobs)
    _check(raw, config, path)
    foreign(f"{path}.load_model", target.load_model, bytearray(raw), fits=True)
    foreign(f"{path}.load_config", target.load_config, config.decode(), fits=True)
    return target


def _check(raw: Any, config: Any, path: str) -> None:
    """Raise DoesNotFit unless the bytes can be a Booster, before XGBoost's own parser gets them."""
    if type(raw) is not bytes or type(config) is not bytes:
        raise DoesNotFit(f"{path}: the checkpoint holds a Booster that is not bytes")
    # An object of UBJSON, whose first key has a length, up to its closing brace.
    if not (raw.startswith(b"{L") and raw.endswith(b"}")):
        raise DoesNotFit(f"{path}: the checkpoint holds a Booster that is not UBJSON")
    try:
        found = json.loads(config)
    except (ValueError, RecursionError):
        found = None
    if type(found) is not dict or not {"learner", "version"} <= found.keys():
        raise DoesNotFit(f"{path}: the checkpoint holds a Booster whose configuration is none")


def _config(booster: Any, path: str) -> str:
    try:
        return booster.save_config()
    except xgboost.core.XGBoostError as error:
        if "num_feature" not in str(error):
            raise
        raise StateError(
            f"{path} is a Booster that has seen no data yet, which XGBoost cannot save; make it "
            "with your DMatrix, xgboost.Booster(params, [rows]), and keep that in a variable"
        ) from None


def _refuse(config: dict[str, Any], path: str) -> None:
    if config["learner"]["gradient_booster"]["name"] == "gblinear":
        raise StateError(
            f"{path} is a gblinear Booster, whose learning rate XGBoost does not restore; "
            "keep booster.save_raw() in a dict and make a new Booster from it in each step"
        )
    for name, value in _numbers(config):
        if (name in _SHARES and value != 1) or (name in _DROPS and value != 0):
            raise StateError(
                f"{path} samples ({name}={value:g}), and XGBoost does not reveal the position in"
                " its "
                "random numbers; train in segments and keep save_raw() of the last one in a dict"
            )


def _numbers(config: Any) -> Any:
    """The names and values of all numbers in a configuration, which stores them as strings."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif name in (*_SHARES, *_DROPS):
            yield name, float(value)
