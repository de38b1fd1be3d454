"""Nodes that our snapshots never hold, but that someone else's checkpoint may hold.

Each table is for one adapter: the nodes are refused wherever they stand. Arrays 0 to 3 are there.
"""

from dataclasses import dataclass
from typing import Any

from outlast.loop.state import Blob, Blobs

DEEP: list[Any] = []
for _ in range(400):
    DEEP = [DEEP]


@dataclass
class Note:
    """A class of the program's, which a result may not name."""

    text: str


def blobs() -> Blobs:
    """Four arrays: numbers, bytes, a text, and one whose table entry says more than there is."""
    return Blobs(
        [
            Blob("<f4", (2,), bytes(8), 8),
            Blob("bytes", (8,), bytes(8), 8),
            Blob("<U1", (1,), bytes(4), 4),
            Blob("<f8", (1 << 50,), bytes(8), 8),
        ]
    )


def items(base: str = "dict", **more: Any) -> dict[str, Any]:
    return {"$object": "containers.items", "base": base, **more}


def made(cls: str, **attributes: Any) -> dict[str, Any]:
    return {"$object": "containers.object", "class": cls, "attributes": attributes}


def value(*parts: Any) -> dict[str, Any]:
    return {"$value": list(parts)}


PYTHON: list[Any] = [
    {"$object": "os.system"},
    {"$object": "subprocess.Popen", "args": ["id"]},
    {"$object": ["torch.Module"]},
    {"$object": "random"},
    {"$object": "random", "state": 1},
    {"$object": "random", "state": {"$tuple": [3, {"$tuple": [1] * 624 + [625]}, None]}},
    {"$object": "random", "state": {"$tuple": [3, {"$tuple": [-1] * 625}, None]}},
    {"$object": "state_dict", "state": {}},
    {"$object": "containers.items"},
    {"$object": "containers.unknown"},
    items("type", pairs=[]),
    items("Path", items=["/"]),
    items("dict", items=[1]),
    items("dict", pairs=[[1]]),
    items("dict", pairs=[[[1], 2]]),
    items("dict", pairs=[[{"a": 1}, 2]]),
    items("dict", pairs=[[{"$array": 0}, 2]]),
    items("dict", pairs=[[{"$tuple": [1, {"a": 1}]}, 2]]),
    items("dict", pairs=[[{"$tuple": [{"$tuple": [[1]]}]}, 2]]),
    {"$dict": [[{"$tuple": [1, {"$dict": []}]}, 2]]},
    items("set", members=[{"$tuple": [items("set", pairs=[])]}]),
    items("set", members=[[1]]),
    *(() if slice.__hash__ else (items("set", members=[value("slice", 0, 1, None)]),)),
    *(() if slice.__hash__ else ({"$dict": [[{"$tuple": [value("slice", 0, 1, None)]}, {}]]},)),
    items("set", members=[items("set", members=[])]),
    items("deque", items=[]),
    items("deque", items=[], maxlen=-1),
    items("deque", items=[], maxlen=1 << 80),
    items("defaultdict", pairs=[], default="eval"),
    items("defaultdict", pairs=[], default={"live": True}),
    items("OrderedDict", pairs=[], **{"class": "collections:OrderedDict"}),
    items("list", items=[], **{"class": "subprocess:Popen"}),
    {"$object": "containers.bytearray", "raw": 1 << 62},
    {"$object": "containers.array", "type": "u", "raw": {"$bytes": "AAA="}},
    {"$object": "containers.array", "type": "zz", "raw": {"$bytes": ""}},
    made("collections:ChainMap"),
    made("collections:UserDict", maps=[]),
    made("types:SimpleNamespace", __class__=value("type", "int")),
    made("os:_Environ", data={}),
    made("subprocess:CompletedProcess", args="id"),
    made("tempfile:_TemporaryFileCloser", name="/etc/passwd"),
    made("dataclasses:_DataclassParams"),
    {
        "$object": "containers.namedtuple",
        "class": "sys:version_info",
        "fields": ["major"],
        "items": [1],
    },
    {"$object": "containers.namedtuple", "class": "x:Y", "fields": ["a"], "items": []},
    {"$object": "containers.namedtuple", "class": "os:stat_result", "fields": [], "items": []},
    value("enum", "signal:Signals", "SIGKILL"),
    value("enum", "http:HTTPStatus", "OK"),
    value("eval", "1"),
    value("type", "type"),
    value("type", "__import__"),
    value("int", "0x"),
    value("Fraction", "0x1", "0x0"),
    value("UUID", {"hex": "0"}),
    value("path", "Path", "/"),
    value("datetime", "2026-01-01T00:00:00", 0, "../../../../etc/localtime"),
    value("datetime", "2026-01-01T00:00:00", 0, "America"),
    value("timezone", [1, 2], None),
    value("slice", 0, [1], None),
    value(),
    {"$value": "int"},
    {"$bytes": "###"},
    {"$bytes": {"$blob": 0}},
    {"$bytes": {"$blob": 9}},
    {"$bytes": {"$blob": -1}},
    {"$tuple": {"0": 1}},
    {"$float": "1e999"},
    {"$new": 1},
    {"$same": "x"},
    {"$same": "state['box']['x']"},
    {"$same": "state['box']"},
    {"$same": 0},
    {"$code": "print(1)"},
    {"$tuple": [], "$dict": []},
    {"$dict": [[1, 2, 3]]},
    {"$tuple": [], "extra": 1},
    [{"$bytes": {"$blob": 1}}, {"$bytes": {"$blob": 1}}],
    DEEP,
]
"""Python's containers and values."""


def bit(name: str, **inner: Any) -> dict[str, Any]:
    held = {"bit_generator": name, "state": inner, "has_uint32": 0, "uinteger": 0}
    return {"$object": "numpy.BitGenerator", "state": held, "seeds": None}


def seeds(**other: Any) -> dict[str, Any]:
    plain = {"entropy": 1, "spawn_key": {"$tuple": []}, "pool_size": 4, "n_children_spawned": 0}
    return {"$object": "numpy.SeedSequence", "state": {**plain, **other}}


def scalar(dtype: str, size: int = 8) -> dict[str, Any]:
    return {"$scalar": {"dtype": dtype, "hex": "00" * size}}


def dtype(name: str) -> dict[str, Any]:
    return {"$object": "numpy.dtype", "name": name}


def record(**other: Any) -> dict[str, Any]:
    import json

    plain = {"names": ["a"], "formats": ["<f4"], "offsets": [0], "itemsize": 4, "aligned": False}
    return dtype(json.dumps({**plain, **other}))


NUMPY: list[Any] = [
    items("set", members=[scalar("|V8")]),
    {"$dict": [[scalar("|V8"), 1]]},
    {"$dict": [[{"$tuple": [scalar("{")]}, {}]]},
    {"$array": 4},
    {"$array": -1},
    {"$array": True},
    {"$array": "0"},
    {"$array": None},
    {"$array": 1},
    {"$array": 3},
    {"$array": 0, "dtype": "|O"},
    {"$array": 0, "readonly": "yes"},
    {"$array": 0, "$scalar": {"str": ""}},
    [{"$array": 0}, {"$tensor": 0}],
    [{"$array": 1}, {"$bytes": {"$blob": 1}}],
    scalar("|O"),
    scalar("O"),
    scalar("object"),
    scalar("<f4,<f4"),
    scalar("(1000000000,)f8"),
    scalar("<f8", 4),
    scalar("<f8", 16),
    scalar("<f8", 0),
    scalar("<U1000000000"),
    scalar("int64"),
    scalar("finfo"),
    scalar("__builtins__"),
    scalar("<M8[1000000000000000000000s]"),
    scalar(""),
    {"$scalar": {"dtype": "<f8"}},
    {"$scalar": {"str": 1}},
    {"$scalar": {"bytes": "zz"}},
    {"$scalar": []},
    dtype("|O"),
    dtype("O"),
    dtype("{"),
    dtype("{}"),
    dtype("[" * 3000),
    dtype("numpy.memmap"),
    record(formats=["|O"]),
    record(offsets=[-8]),
    record(offsets=[1 << 40]),
    record(itemsize=-1),
    record(itemsize=1),
    record(names=["a", "a"], formats=["<f4", "<f4"], offsets=[0, 4], itemsize=8),
    record(formats=[["<f4", [1 << 60]]]),
    record(formats=[["<f4", [-1]]]),
    record(titles=["x"]),
    {"$object": "numpy.type", "name": "memmap"},
    {"$object": "numpy.type", "name": "load"},
    {"$object": "numpy.type", "name": "generic.__class__"},
    {"$object": "numpy.objects", "shape": [1 << 40], "items": []},
    {"$object": "numpy.objects", "shape": [0, 1 << 61], "items": []},
    {"$object": "numpy.objects", "shape": [2], "items": [1]},
    {"$object": "numpy.objects", "shape": [-1], "items": [1]},
    {"$object": "numpy.objects", "shape": [1] * 65, "items": [1]},
    {"$object": "numpy.masked", "data": 1, "mask": 2, "fill": None, "hard": False},
    {"$object": "numpy.masked", "data": {"$array": 0}, "mask": {"$array": 2}, "fill": [1]},
    {"$object": "numpy.memmap", "path": "/etc/passwd"},
    {"$object": "numpy.Generator", "state": None},
    {"$object": "numpy.Generator", "state": {"bit_generator": "PCG64"}},
    {"$object": "numpy.BitGenerator", "state": None, "seeds": None},
    bit("MT19937", key={"$array": 0}, pos=1 << 30),
    bit("MT19937", key={"$array": 0}, pos=-5),
    bit("Philox", counter={"$array": 0}, key={"$array": 0}),
    bit("PCG64", state=1 << 200, inc=1),
    bit("PCG64", state="1", inc=1),
    bit("PCG64", state=-1, inc=1),
    bit("RandomState"),
    bit("SFC64", state={"$array": 0}),
    {"$object": "numpy.RandomState", "state": {}},
    {"$object": "numpy.RandomState", "state": {"bit_generator": "MT19937", "state": {"pos": 1}}},
    seeds(pool_size=1 << 40),
    seeds(pool_size=0),
    seeds(n_children_spawned=-1),
    seeds(n_children_spawned=1 << 40),
    seeds(entropy="1"),
    seeds(entropy=-1),
    seeds(spawn_key=[-1]),
    seeds(spawn_key=5),
    seeds(extra=1),
]
"""numpy's arrays, scalars, dtypes and random numbers."""

TREE = "sklearn.tree._classes.DecisionTreeClassifier"
MLP = "sklearn.neural_network._multilayer_perceptron.MLPClassifier"
ADAM = "sklearn.neural_network._stochastic_optimizers.AdamOptimizer"
HINGE = "sklearn.linear_model._sgd_fast.Hinge"


def estimator(cls: Any, params: Any = None, state: Any = None, **more: Any) -> dict[str, Any]:
    node = {"$object": "sklearn.estimator", "class": cls}
    return {**node, "params": params or {}, "state": state or {}, **more}


def compiled(cls: Any, *args: Any) -> dict[str, Any]:
    return {"$object": "sklearn.object", "class": cls, "args": list(args)}


SKLEARN: list[Any] = [
    *(
        each(cls)
        for cls in (
            "sklearn.externals.array_api_compat.numpy.memmap",
            "sklearn.datasets._covtype.GzipFile",
            "sklearn.datasets._base.Path",
            "sklearn.utils._joblib.Parallel",
            "sklearn.utils.parallel.Parallel",
            "sklearn.base.object",
            "sklearn.utils.Bunch",
            "sklearn.tree.DecisionTreeClassifier",
            "sklearn.tests.test_base.MyEstimator",
            "sklearn.conftest.SkipTest",
            "sklearn.utils._testing.TempMemmap",
            "sklearn._loss._loss.memoryview",
            "sklearn.linear_model._sgd_fast.SGDClassifier",
            "xgboost.core.Booster",
            "xgboost.core.DMatrix",
            "subprocess.Popen",
            "gzip.GzipFile",
            "os.system",
            "json.JSONDecoder",
            "conftest.Anything",
            "",
        )
        for each in (estimator, compiled)
    ),
    estimator(None),
    estimator([TREE]),
    estimator(HINGE),
    estimator(ADAM, {"lr": 1}),
    estimator(TREE, {"nonsense": 1}),
    estimator(TREE, [1]),
    estimator(TREE, {"max_depth": 1}, {"max_depth": 2}),
    estimator(TREE, {}, {"max_depth": 2}, extra=1),
    estimator(TREE, {}, {"tree_": compiled("sklearn.tree._tree.Tree", 1, 1, 1)}),
    estimator(TREE, {}, {}, began=[1]),
    estimator(TREE, {}, {}, began={"max_depth": 1}),
    estimator(TREE, {"max_depth": {"$same": "nowhere"}}),
    estimator(MLP, {"hidden_layer_sizes": {"$array": 1}}),
    {"$object": "sklearn.estimator", "class": TREE, "params": {}},
    {"$object": "sklearn.pickle", "class": TREE},
    compiled(MLP),
    compiled(HINGE, {"$array": 0}),
    compiled(HINGE, [1.0]),
    compiled(HINGE, "x"),
    compiled(HINGE, 1.0, 2.0, 3.0),
    compiled(HINGE, 10**400),
    compiled("sklearn._loss._loss.CyHuberLoss"),
    compiled("sklearn._loss._loss.CyLossFunction", "/etc/passwd"),
    {"$object": "sklearn.object", "class": HINGE, "args": {"0": 1}},
    {"$object": "sklearn.object", "class": HINGE},
]
"""scikit-learn's estimators, optimisers and losses."""
