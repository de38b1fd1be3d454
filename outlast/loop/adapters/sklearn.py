"""scikit-learn: estimators by their parameters and fitted attributes, never by pickle.

What an estimator has learnt is what its instance holds beside its constructor's parameters. For
MLPClassifier that includes the optimiser with its moments and the random state that partial_fit
keeps. Parameters must be equal on both sides: a changed one is another model. XGBoost's
estimators are scikit-learn's too; their Booster is the XGBoost adapter's.

scikit-learn's own compiled objects (a loss) are saved as the class and the arguments that rebuild
them, where that is all they are made of.
"""

import importlib
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.neural_network._stochastic_optimizers import BaseOptimizer

from outlast.loop import state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import MISSING, Blobs, Node

_PLAIN = (type(None), bool, int, float, str)
_PACKAGES = ("sklearn.", "xgboost.")


def capture(value: object, path: str, blobs: Blobs) -> Node:
    if isinstance(value, BaseEstimator):
        params = value.get_params(deep=False)
        learnt = {name: item for name, item in vars(value).items() if name not in params}
    elif isinstance(value, BaseOptimizer):
        params, learnt = {}, vars(value)
    else:
        args = _arguments(value)
        if args is None:
            return MISSING
        return {"$object": "sklearn.object", "class": _class_of(value), "args": args}
    return {
        "$object": "sklearn.estimator",
        "class": _class_of(value),
        "params": {
            name: state.capture(item, f"{path}.{name}", blobs) for name, item in params.items()
        },
        "state": {
            name: state.capture(item, f"{path}.{name}", blobs) for name, item in learnt.items()
        },
    }


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if node["$object"] == "sklearn.object":
        return _class(node, path)(*node["args"])
    if target is MISSING or target is None:
        target = _build(node, path, blobs)
    theirs, ours = node["class"], _class_of(target)
    if theirs != ours:
        raise DoesNotFit(f"{path} is {ours}: the checkpoint holds {theirs}")
    params = target.get_params(deep=False) if isinstance(target, BaseEstimator) else {}
    for name, item in node["params"].items():
        if name not in params:
            raise DoesNotFit(f"{path}: this version of {ours} has no parameter {name}")
        value = state.restore(params[name], item, f"{path}.{name}", blobs)
        if value is not params[name] and repr(value) != repr(params[name]):
            raise DoesNotFit(
                f"{path} has {name}={params[name]!r}: the checkpoint's is {value!r}; "
                "a changed model is a new run"
            )
    held = vars(target)
    for name in [name for name in held if name not in params and name not in node["state"]]:
        del held[name]
    news = {
        # Not into what is there: what an estimator learns may change its shape.
        name: state.restore(_kept(held.get(name, MISSING)), item, f"{path}.{name}", blobs)
        for name, item in node["state"].items()
    }
    for name in news:
        held.pop(name, None)  # the order of attributes is the checkpoint's
    held.update(news)
    return target


def _kept(value: Any) -> Any:
    """Estimators inside estimators stay the objects that they are."""
    return value if isinstance(value, BaseEstimator) else MISSING


def _arguments(value: object) -> list[Any] | None:
    """The plain arguments that make an equal compiled object of scikit-learn, if there are."""
    cls = type(value)
    if not cls.__module__.startswith("sklearn.") or hasattr(value, "__dict__"):
        return None
    try:
        made = value.__reduce__()
    except TypeError:
        return None
    if not isinstance(made, tuple) or made[0] is not cls or any(made[2:]):
        return None
    return list(made[1]) if all(type(item) in _PLAIN for item in made[1]) else None


def _class_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _class(node: Node, path: str) -> type:
    """The class that the checkpoint names; scikit-learn's and XGBoost's own only."""
    module, _, name = node["class"].rpartition(".")
    cls = None
    if module.startswith(_PACKAGES):
        cls = getattr(importlib.import_module(module), name, None)
    if not isinstance(cls, type):
        raise DoesNotFit(f"{path}: the checkpoint holds {node['class']}, which cannot be rebuilt")
    return cls


def _build(node: Node, path: str, blobs: Blobs) -> Any:
    """A new object of the class that the checkpoint names."""
    cls = _class(node, path)
    if issubclass(cls, BaseOptimizer):
        return cls.__new__(cls)  # its constructor wants the parameters; its state is all it has
    if not issubclass(cls, BaseEstimator):
        raise DoesNotFit(f"{path}: the checkpoint holds {node['class']}, which is no estimator")
    return cls(
        **{
            key: state.restore(MISSING, item, f"{path}.{key}", blobs)
            for key, item in node["params"].items()
        }
    )
