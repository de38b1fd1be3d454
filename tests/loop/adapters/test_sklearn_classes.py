"""The list of scikit-learn's classes against the version that is locked."""

import importlib
import pkgutil
import warnings

import sklearn
from sklearn.base import BaseEstimator
from sklearn.utils import all_estimators

from outlast.loop.adapters import sklearn_classes

NOT_BUILT = ("externals", "tests", "conftest", "_build_utils")


def installed() -> set[tuple[str, str]]:
    """Every estimator in scikit-learn's own modules, those that only other estimators hold too."""
    found = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in pkgutil.walk_packages(sklearn.__path__, "sklearn."):
            if not set(NOT_BUILT).isdisjoint(each.name.split(".")):
                continue
            module = importlib.import_module(each.name)
            found |= {
                (cls.__module__, name)
                for name, cls in vars(module).items()
                if isinstance(cls, type)
                and issubclass(cls, BaseEstimator)
                and (cls.__module__, cls.__qualname__) == (module.__name__, name)
            }
    return found


def listed(classes: dict[str, str]) -> set[tuple[str, str]]:
    return {(module, name) for module, names in classes.items() for name in names.split()}


def test_every_estimator_of_the_locked_version_is_on_the_list_and_nothing_else() -> None:
    ours = {
        entry for entry in listed(sklearn_classes.ESTIMATORS) if entry[0].startswith("sklearn.")
    }
    theirs = installed()
    assert {(cls.__module__, cls.__name__) for _, cls in all_estimators()} <= theirs
    assert (theirs - ours, ours - theirs) == (set(), set()), "write them into sklearn_classes.py"


def test_each_loss_and_optimiser_on_the_list_is_one_of_its_module() -> None:
    for module, name in listed(sklearn_classes.LOSSES | sklearn_classes.OPTIMIZERS):
        cls = getattr(importlib.import_module(module), name)
        assert (cls.__module__, cls.__qualname__) == (module, name)
