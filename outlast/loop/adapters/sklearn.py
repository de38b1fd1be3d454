"""scikit-learn: estimators, saved as parameters and fitted attributes, never by pickle.

The fitted attributes are all those of the instance that are not its constructor's parameters. For
MLPClassifier they include the optimiser with its moments and the random state that partial_fit
keeps. Parameters must be equal on both sides, because a changed one is another model. If training
itself has changed one (``set_params(eta0=…)``), the checkpoint also has the value from the
program's start, and that must be equal. XGBoost's estimators are scikit-learn's too; the XGBoost
adapter saves their Booster.

scikit-learn's own compiled losses are saved as the class and the arguments that rebuild them. New
objects are built only from the classes in outlast.loop.adapters.sklearn_classes; an estimator of
the program's own class is restored into the live object that the program has.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.neural_network._stochastic_optimizers import BaseOptimizer

from outlast.loop import state
from outlast.loop.adapters.sklearn_classes import ESTIMATORS, LOSSES, OPTIMIZERS, listed
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import MISSING, Blobs, Node, foreign, kind_of

_PLAIN = (type(None), bool, int, float, str)


def capture(value: object, path: str, blobs: Blobs) -> Node:
    if isinstance(value, BaseEstimator):
        if not _is_own(type(value)):
            blobs.need_target(value, path, kind_of(value))
        params = foreign(f"{path}.get_params()", lambda: value.get_params(deep=False))
        learnt = {name: item for name, item in vars(value).items() if name not in params}
    elif isinstance(value, BaseOptimizer):
        params, learnt = {}, vars(value)
    else:
        args = _arguments(value)
        if args is None:
            return MISSING
        return {"$object": "sklearn.object", "class": _class_of(value), "args": args}
    node = {
        "$object": "sklearn.estimator",
        "class": _class_of(value),
        "params": {
            name: state.capture(item, f"{path}.{name}", blobs) for name, item in params.items()
        },
        "state": {
            name: _capture_learnt(item, f"{path}.{name}", blobs) for name, item in learnt.items()
        },
    }
    shown = {name: repr(item) for name, item in params.items()}
    before = blobs.noted(path, shown)
    changed = {name: text for name, text in before.items() if name in shown and shown[name] != text}
    return {**node, "began": changed} if changed else node


def _capture_learnt(value: object, path: str, blobs: Blobs) -> Node:
    """Capture a fitted attribute. A restore replaces it, because its shape may change; only
    estimators inside estimators keep their identity."""
    if isinstance(value, BaseEstimator):
        return state.capture(value, path, blobs)
    return state.capture_part(value, path, blobs)


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if node["$object"] == "sklearn.object":
        return foreign(path, _class(node, path, LOSSES), *node["args"], fits=True)
    if both := sorted(node["params"].keys() & node["state"].keys()):
        raise DoesNotFit(f"{path}: the checkpoint has {both[0][:100]} as a parameter and as learnt")
    if target is MISSING:
        return _built(node, path, blobs)
    theirs, ours = node["class"], _class_of(target)
    if theirs != ours:
        raise DoesNotFit(f"{path} is {ours}: the checkpoint holds {theirs}")
    params = target.get_params(deep=False) if isinstance(target, BaseEstimator) else {}
    for name, item in node["params"].items():
        if name not in params:
            raise DoesNotFit(f"{path}: this version of {ours} has no parameter {name}")
        value = state.restore(params[name], item, f"{path}.{name}", blobs)
        if value is params[name] or repr(value) == repr(params[name]):
            continue
        began = node.get("began", {}).get(name)
        if repr(params[name]) != began:
            before = "" if began is None else f" and began as {began}"
            raise DoesNotFit(
                f"{path} has {name}={params[name]!r}: the checkpoint's is {value!r}{before}; "
                "a changed model is a new run"
            )
        setattr(target, name, value)  # as set_params, which training called, does
    if both := sorted(params.keys() & node["state"].keys()):
        raise DoesNotFit(f"{path}: the checkpoint has the parameter {both[0]} as learnt")
    held = vars(target)
    for name in [name for name in held if name not in params and name not in node["state"]]:
        del held[name]
    news = {
        # Not in place: the shape of a fitted attribute may change.
        name: state.restore(_kept(held.get(name, MISSING)), item, f"{path}.{name}", blobs)
        for name, item in node["state"].items()
    }
    for name in news:
        held.pop(name, None)  # the order of attributes is the checkpoint's
    held.update(news)
    return target


def parts(target: Any, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The live parameters and estimators inside an estimator."""
    if node["$object"] == "sklearn.estimator" and isinstance(target, BaseEstimator):
        for name, item in node["params"].items():
            yield vars(target).get(name, MISSING), item, f"{path}.{name}"
        for name, item in node["state"].items():
            yield _kept(vars(target).get(name, MISSING)), item, f"{path}.{name}"


def _kept(value: Any) -> Any:
    """The value itself if it is an estimator, which keeps its identity; else MISSING."""
    return value if isinstance(value, BaseEstimator) else MISSING


def _arguments(value: object) -> list[Any] | None:
    """The plain arguments that rebuild an equal compiled object of scikit-learn, or None."""
    cls = type(value)
    if not listed(cls.__module__, cls.__qualname__, LOSSES) or hasattr(value, "__dict__"):
        return None
    try:
        made = value.__reduce__()
    except TypeError:
        return None
    if not isinstance(made, tuple) or made[0] is not cls or any(made[2:]):
        return None
    return list(made[1]) if all(type(item) in _PLAIN for item in made[1]) else None


def _class_of(value: object) -> str:
    return _class_of_type(type(value))


def _class_of_type(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class(node: Node, path: str, classes: dict[str, str]) -> Any:
    """The class that the checkpoint names, if it is on the list."""
    module, _, name = node["class"].rpartition(".")
    cls: Any = None
    if listed(module, name, classes):
        with contextlib.suppress(ImportError):  # another version may lack it
            cls = vars(importlib.import_module(module)).get(name)
    if isinstance(cls, type) and _class_of_type(cls) == node["class"]:
        return cls
    raise DoesNotFit(f"{path}: the checkpoint holds {node['class'][:200]}, which cannot be rebuilt")


def _is_own(cls: type) -> bool:
    """Whether a class is an estimator that a restore can build."""
    return listed(cls.__module__, cls.__qualname__, ESTIMATORS)


def _built(node: Node, path: str, blobs: Blobs) -> Any:
    """A new object of the class that the checkpoint names. An object that the checkpoint itself
    built is never the target of another restore."""
    module, _, name = node["class"].rpartition(".")
    if listed(module, name, OPTIMIZERS):
        cls = _class(node, path, OPTIMIZERS)
        made = cls.__new__(cls)  # the constructor needs parameters, but its state is complete
        if node["params"]:
            raise DoesNotFit(f"{path}: the checkpoint holds {node['class']} with parameters")
    else:
        cls = _class(node, path, ESTIMATORS)
        params = {
            key: state.restore(MISSING, item, f"{path}.{key}", blobs)
            for key, item in node["params"].items()
        }
        made = foreign(path, lambda: cls(**params), fits=True)
        held = foreign(path, lambda: made.get_params(deep=False), fits=True)
        for key, value in params.items():
            if key not in held or (held[key] is not value and repr(held[key]) != repr(value)):
                raise DoesNotFit(f"{path}: this version of {node['class']} has no parameter {key}")
    vars(made).update(
        {
            key: state.restore(MISSING, item, f"{path}.{key}", blobs)
            for key, item in node["state"].items()
        }
    )
    return made
