"""Kinds of state of PyTorch, scikit-learn, Keras, JAX and XGBoost, for the table of kinds: what a
program starts with, and what three steps have made of it. A kind is a dict of named objects."""

import collections
import copy
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")

Make = Callable[[], Any]
STEPS = 3


def trained(
    make: Callable[[], tuple[dict[str, Any], Callable[[int], object]]],
) -> tuple[Make, Make]:
    """A kind from what a program builds and the step that it makes."""

    def new() -> Any:
        parts, step = make()
        for number in range(1, STEPS + 1):
            step(number)
        return parts

    return lambda: make()[0], new


# PyTorch


def _network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))


def _torch(
    optimizer: Callable[[Any], Any], scheduler: Callable[[Any], Any] | None = None
) -> tuple[Make, Make]:
    def make() -> Any:
        import torch

        model = _network()
        parts = {"model": model, "optimizer": optimizer(model.parameters())}
        if scheduler is not None:
            parts["scheduler"] = scheduler(parts["optimizer"])

        def step(number: int) -> None:
            def closure() -> Any:
                parts["optimizer"].zero_grad()
                loss = model(torch.arange(12.0).reshape(4, 3) / number).square().mean()
                loss.backward()
                return loss

            parts["optimizer"].step(closure)
            if scheduler is not None:
                plateau = type(parts["scheduler"]).__name__ == "ReduceLROnPlateau"
                parts["scheduler"].step(*[1.0] if plateau else [])

        return parts, step

    return trained(make)


def _optim(name: str, **options: Any) -> Callable[[Any], Any]:
    def build(parameters: Any) -> Any:
        import torch

        return getattr(torch.optim, name)(parameters, **options)

    return build


def _lr(name: str, **options: Any) -> Callable[[Any], Any]:
    def build(optimizer: Any) -> Any:
        import torch

        return getattr(torch.optim.lr_scheduler, name)(optimizer, **options)

    return build


def _own_module() -> Any:
    import torch

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.count, self.history, self.average = 0, [{"loss": 9.0}], torch.zeros(2)
            self.rng = np.random.default_rng(0)

        def forward(self, number: int) -> None:
            self.count += number
            self.history.append({"loss": float(self.rng.random())})
            self.average = self.average + number

    torch.manual_seed(0)
    model = Own()
    return {"model": model}, model


def _averaged() -> Any:
    import torch

    model = _network()
    average = torch.optim.swa_utils.AveragedModel(model)

    def step(number: int) -> None:
        with torch.no_grad():
            for item in model.parameters():
                item += number
        average.update_parameters(model)

    return {"model": model, "average": average}, step


def _weights() -> Any:
    model = _network()
    best: dict[str, Any] = {"weights": collections.OrderedDict()}

    def step(number: int) -> None:
        model[0].bias.data += number
        best["weights"] = copy.deepcopy(model.state_dict())

    return {"model": model, "best": best}, step


def _scaler() -> Any:
    import torch

    scaler = torch.amp.GradScaler("cpu")

    def step(number: int) -> None:
        scaler.scale(torch.ones(1))
        scaler.update(2.0 * number)

    return {"scaler": scaler}, step


def _replay() -> Any:
    import torch

    from tests.loop.test_kinds_of_state import Move

    memory: Any = collections.deque(maxlen=2)
    return {"memory": memory}, lambda number: memory.append(Move(torch.ones(2) * number, 1.0))


def _torch_draws(module: bool) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        torch.manual_seed(1)
        generator = torch.random if module else torch.Generator().manual_seed(1)
        used = None if module else generator
        return {"rng": generator}, lambda number: torch.rand(number, generator=used)

    return make


def _metric() -> Any:
    import torchmetrics

    metric = torchmetrics.MeanMetric()
    return {"metric": metric}, metric.update


def _dtypes() -> Any:
    import torch

    names = ("bfloat16", "float16", "int8", "complex64", "bool")
    box = {name: torch.zeros(3).to(getattr(torch, name)) for name in names}
    return {"box": box}, lambda number: [item[1:].fill_(1) for item in box.values()]


# scikit-learn


def _sklearn(home: str, name: str, **options: Any) -> tuple[Make, Make]:
    def make() -> Any:
        import importlib

        model = getattr(importlib.import_module(f"sklearn.{home}"), name)(**options)
        rng = np.random.default_rng(0)

        def step(number: int) -> None:
            x = rng.random((20, 4))
            y = np.arange(20) % 2
            more = {"classes": [0, 1]} if name.endswith("Classifier") or name.endswith("NB") else {}
            model.partial_fit(x, y, **more)

        return {"model": model}, step

    return trained(make)


def _frames() -> Any:
    import pandas
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(random_state=0)
    x = pandas.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "pay": [4.0, 3.0, 2.0, 1.0]})
    return {"model": model}, lambda number: model.partial_fit(
        x, ["no", "yes", "no", "yes"], classes=["no", "yes"]
    )


def _rates() -> Any:
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(learning_rate="constant", eta0=0.1, random_state=0)
    best: dict[str, Any] = {"model": None}

    def step(number: int) -> None:
        model.set_params(eta0=0.1 / number)
        model.partial_fit(np.eye(2), [0, 1], classes=[0, 1])
        best["model"] = copy.deepcopy(model)

    return {"model": model, "best": best}, step


# Keras


def _keras_model() -> Any:
    import keras

    keras.utils.clear_session()  # else the names count on
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dropout(0.5, seed=1)(keras.layers.Dense(4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return {"model": model}, lambda number: model.train_on_batch(
        np.ones((4, 3)) * number, np.ones((4, 2))
    )


def _keras_metric() -> Any:
    import keras

    metric = keras.metrics.Mean()
    return {"metric": metric}, metric.update_state


def _keras_draws(module: bool) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        generator = None if module else keras.random.SeedGenerator(1)
        held = keras.random if module else generator
        return {"rng": held}, lambda number: keras.random.normal((number,), seed=generator)

    return make


# JAX


def _jax_arrays() -> Any:
    import jax

    box = {
        "w": jax.numpy.zeros(3),
        "half": jax.numpy.zeros(2, "bfloat16"),
        "key": jax.random.key(0),
    }

    def step(number: int) -> None:
        box["key"], key = jax.random.split(box["key"])
        box["w"] = box["w"] + jax.random.normal(key, (3,))
        box["half"] = box["half"] + number

    return {"box": box}, step


def _optax() -> Any:
    import jax
    import optax

    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 9))
    )
    params = {"w": jax.numpy.ones(3)}
    box = {"params": params, "state": optimizer.init(params)}

    def step(number: int) -> None:
        updates, box["state"] = optimizer.update(box["params"], box["state"], box["params"])
        box["params"] = optax.apply_updates(box["params"], updates)

    return {"box": box}, step


def _nnx() -> Any:
    import jax
    import optax
    from flax import nnx

    rngs = nnx.Rngs(0, dropout=1)
    model = nnx.Sequential(nnx.Linear(2, 2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    def step(number: int) -> None:
        grads = nnx.grad(lambda net: net(jax.numpy.ones((1, 2)) * number).sum())(model)
        optimizer.update(model, grads)

    return {"model": model, "optimizer": optimizer, "rngs": rngs}, step


# XGBoost


@functools.cache
def _matrix() -> Any:
    """Kept: a Booster does not keep its data itself."""
    import xgboost

    return xgboost.DMatrix(np.arange(12.0).reshape(6, 2), np.arange(6) % 2)


def _booster() -> Any:
    import xgboost

    rows = _matrix()
    booster = xgboost.Booster({"max_depth": 2, "eta": 0.3, "nthread": 1}, [rows])
    return {"booster": booster}, lambda number: booster.update(rows, number)


def kinds() -> dict[str, tuple[Make, Make]]:
    return {
        "torch: tensors of five dtypes": trained(_dtypes),
        "torch: module of one's own, with attributes": trained(_own_module),
        "torch: Adam": _torch(_optim("Adam", lr=0.1)),
        "torch: SGD with momentum": _torch(_optim("SGD", lr=0.1, momentum=0.9)),
        "torch: LBFGS": _torch(_optim("LBFGS", lr=0.1, max_iter=3)),
        "torch: OneCycleLR": _torch(
            _optim("SGD", lr=0.1, momentum=0.9), _lr("OneCycleLR", max_lr=0.1, total_steps=9)
        ),
        "torch: ReduceLROnPlateau": _torch(
            _optim("AdamW", lr=0.1), _lr("ReduceLROnPlateau", patience=1)
        ),
        "torch: LambdaLR": _torch(
            _optim("SGD", lr=0.1), _lr("LambdaLR", lr_lambda=lambda step: 0.9**step)
        ),
        "torch: averaged model": trained(_averaged),
        "torch: best weights (OrderedDict)": trained(_weights),
        "torch: GradScaler": trained(_scaler),
        "torch: replay buffer": trained(_replay),
        "torch: Generator": trained(_torch_draws(False)),
        "torch: torch.random": trained(_torch_draws(True)),
        "torchmetrics: MeanMetric": trained(_metric),
        "sklearn: SGDClassifier": _sklearn("linear_model", "SGDClassifier", random_state=0),
        "sklearn: MLPClassifier": _sklearn("neural_network", "MLPClassifier", random_state=0),
        "sklearn: GaussianNB": _sklearn("naive_bayes", "GaussianNB"),
        "sklearn: StandardScaler": _sklearn("preprocessing", "StandardScaler"),
        "sklearn: MiniBatchKMeans": _sklearn(
            "cluster", "MiniBatchKMeans", n_clusters=2, n_init=1, random_state=0
        ),
        "sklearn: DataFrame, string labels": trained(_frames),
        "sklearn: set_params, copy of the best": trained(_rates),
        "keras: compiled model": trained(_keras_model),
        "keras: metric": trained(_keras_metric),
        "keras: SeedGenerator": trained(_keras_draws(False)),
        "keras: keras.random": trained(_keras_draws(True)),
        "jax: arrays and keys": trained(_jax_arrays),
        "jax: optax chain": trained(_optax),
        "jax: nnx module, optimizer, rngs": trained(_nnx),
        "xgboost: Booster": trained(_booster),
    }
