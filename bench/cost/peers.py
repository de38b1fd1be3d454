# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportFunctionMemberAccess=false
"""A save and a load of the same state with a peer, as its documentation shows, on this disk.

`blocked` is until its call returns, `complete` until it says that the checkpoint is complete. None
of them waits for the disk, so `commit` has an fsync of all files after that; none of them hashes.
"""

import os
import shutil
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

from measures import Stopwatch, arguments, change, forget_peak, report, resident_mb, state

REST_SEC = 0.3


def done():
    """A save that was complete when its call returned."""


def torch_save(arrays, folder):
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def save(path):
        torch.save(tensors, path)
        return done

    return save, lambda path: torch.load(path, weights_only=True)


def safetensors(arrays, folder):
    from safetensors.numpy import load_file, save_file

    def save(path):
        save_file(arrays, path)
        return done

    return save, load_file


def lightning(arrays, folder):
    import torch
    from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    plugins = []

    def save(path):
        plugin = AsyncCheckpointIO(TorchCheckpointIO())
        plugins.append(plugin)
        plugin.save_checkpoint({"state_dict": tensors}, path)
        return plugin.teardown

    return save, lambda path: TorchCheckpointIO().load_checkpoint(path)


def dcp(arrays, folder):
    import torch
    import torch.distributed.checkpoint as dcp

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def save(path):
        return dcp.async_save(tensors, checkpoint_id=path).result

    def load(path):
        dcp.load({name: torch.zeros_like(t) for name, t in tensors.items()}, checkpoint_id=path)

    return save, load


def orbax(arrays, folder):
    import jax
    import orbax.checkpoint as ocp

    saver = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def save(path):
        # Arrays of jax do not change in place: each save has new ones, as a step of training makes.
        made = {name: jax.device_put(array.copy()) for name, array in arrays.items()}
        jax.block_until_ready(made)
        begun = time.perf_counter()
        saver.save(path.absolute(), args=ocp.args.StandardSave(made))
        save.spent = time.perf_counter() - begun
        return saver.wait_until_finished

    return save, lambda path: ocp.StandardCheckpointer().restore(path.absolute())


def keras_backup(arrays, folder):
    import keras

    class Weights(keras.layers.Layer):
        def build(self, shape):
            self.held = [
                self.add_weight(shape=array.shape, initializer="zeros", name=name.replace("/", "-"))
                for name, array in arrays.items()
            ]

        def call(self, inputs):
            return inputs

    layer = Weights()
    model = keras.Sequential([keras.Input((1,)), layer])

    def save(path):
        for weight, array in zip(layer.held, arrays.values(), strict=True):
            weight.assign(array)  # training's work, not the save's
        begun = time.perf_counter()
        backup = keras.callbacks.BackupAndRestore(str(path))
        backup.set_model(model)
        backup.on_train_begin()
        backup.on_epoch_end(0)
        save.spent = time.perf_counter() - begun
        return done

    def load(path):
        (file,) = path.glob("*.weights.h5")
        model.load_weights(file)

    return save, load


def xgb_model(arrays, folder):
    """Trees instead of arrays, as many as make the size; what `xgb.train(xgb_model=)` takes."""
    import numpy as np
    import xgboost as xgb

    size = sum(array.nbytes for array in arrays.values())
    rng = np.random.default_rng(0)
    rows = xgb.DMatrix(rng.random((16384, 8), dtype=np.float32), rng.random(16384))
    parameters = {"max_depth": 0, "max_leaves": 8192, "grow_policy": "lossguide", "eta": 0.01}
    booster = xgb.Booster(parameters | {"min_child_weight": 0.0, "lambda": 0.0}, [rows])
    rounds = 0
    while rounds % 8 or len(booster.save_raw("ubj")) < size:
        booster.update(rows, rounds)
        rounds += 1

    def save(path):
        booster.save_model(path.with_suffix(".ubj"))
        path.with_suffix(".ubj").rename(path)
        return done

    def load(path):
        xgb.Booster().load_model(bytearray(path.read_bytes()))

    return save, load


SUBJECTS = {
    "torch.save": torch_save,
    "safetensors": safetensors,
    "lightning async": lightning,
    "torch dcp async": dcp,
    "orbax async": orbax,
    "keras backup": keras_backup,
    "xgb_model=": xgb_model,
}


def size_of(path):
    if path.is_file():
        return 1
    return sum(1 for found in path.rglob("*") if found.is_file())


def sync(path):
    """What makes a checkpoint last that the disk has not seen yet."""
    files = [path, path.parent, *path.rglob("*")]
    for found in files:
        handle = os.open(found, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def main():
    args = arguments()
    arrays = state(args.mb)
    save, load = SUBJECTS[args.subject](arrays, args.dir)
    blocked, complete, commits, objects = [], [], [], 0
    restores = Stopwatch()
    base = 0.0
    for number in range(args.saves + 1):
        change(arrays)
        path = Path(args.dir) / f"{args.subject.strip('=').replace(' ', '-')}-{number}"
        if number == 1:
            base = forget_peak()
        begun = time.perf_counter()
        wait = save(path)
        spent = time.perf_counter() - begun
        waited = time.perf_counter()
        wait()
        waited = time.perf_counter() - waited
        synced = time.perf_counter()
        sync(path)
        synced = time.perf_counter() - synced
        spent = getattr(save, "spent", spent)
        if number:  # the first makes pools and buffers
            blocked.append(spent)
            complete.append(spent + waited)
            commits.append(spent + waited + synced)
        objects = size_of(path)
        time.sleep(REST_SEC)
        if number == args.saves:
            memory = resident_mb() - base
            for _ in range(3):
                with restores:
                    load(path)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    report(
        blocked=blocked,
        complete=complete,
        commit=commits,
        restore=restores.seconds,
        memory=memory,
        objects=objects,
    )


if __name__ == "__main__":
    main()
    os._exit(0)
