"""scikit-learn: estimators by their parameters and fitted attributes, never by pickle.

What an estimator has learnt is what its instance holds beside its constructor's parameters. For
MLPClassifier that includes the optimiser with its moments and the random state that partial_fit
keeps. Parameters must be equal on both sides: a changed one is another model.
"""

import importlib
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.neural_network._stochastic_optimizers import BaseOptimizer

from outlast.loop import state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import MISSING, Blobs, Node


def capture(value: object, path: str, blobs: Blobs) -> Node:
    if isinstance(value, BaseEstimator):
        params = value.get_params(deep=False)
        learnt = {name: item for name, item in vars(value).items() if name not in params}
    elif isinstance(value, BaseOptimizer):
        params, learnt = {}, vars(value)
    else:
        return MISSING
    return {
        "$object": "sklearn",
        "class": f"{type(value).__module__}.{type(value).__name__}",
        "params": {
            name: state.capture(item, f"{path}.{name}", blobs) for name, item in params.items()
        },
        "state": {
            name: state.capture(item, f"{path}.{name}", blobs) for name, item in learnt.items()
        },
    }


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if node.get("$object") != "sklearn":
        return MISSING
    if target is MISSING:
        target = _build(node, path, blobs)
    theirs, ours = node["class"], f"{type(target).__module__}.{type(target).__name__}"
    if theirs != ours:
        raise DoesNotFit(f"{path} is {ours}: the checkpoint holds {theirs}")
    params = target.get_params(deep=False) if isinstance(target, BaseEstimator) else {}
    for name, item in node["params"].items():
        if name not in params:
            raise DoesNotFit(f"{path}: this version of scikit-learn has no parameter {name}")
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
        name: state.restore(held.get(name, MISSING), item, f"{path}.{name}", blobs)
        for name, item in node["state"].items()
    }
    for name in news:
        held.pop(name, None)  # the order of attributes is the checkpoint's
    held.update(news)
    return target


def _build(node: Node, path: str, blobs: Blobs) -> Any:
    """A new object of the class that the checkpoint names; scikit-learn's own classes only."""
    module, _, name = node["class"].rpartition(".")
    cls = None
    if module.startswith("sklearn."):
        cls = getattr(importlib.import_module(module), name, None)
    if not isinstance(cls, type) or not issubclass(cls, BaseEstimator | BaseOptimizer):
        raise DoesNotFit(f"{path}: the checkpoint holds {node['class']}, which cannot be rebuilt")
    if issubclass(cls, BaseOptimizer):
        return cls.__new__(cls)  # its constructor wants the parameters; its state is all it has
    return cls(
        **{
            key: state.restore(MISSING, item, f"{path}.{key}", blobs)
            for key, item in node["params"].items()
        }
    )
