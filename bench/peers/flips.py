# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""One bit flipped in a file that a peer saved: does loading it fail, or give other numbers?

Prints a line for each flip: `refused`, `unchanged` or `silent`. A loader may also crash or hang;
its starter counts that as refused and starts it again from the next flip.
"""

import argparse
import contextlib
import io
import os
import random
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")
warnings.filterwarnings("ignore")

SHAPE = (128, 96)


def arrays():
    generator = np.random.default_rng(3)
    return {name: generator.normal(size=SHAPE).astype(np.float32) for name in ("w", "m", "v")}


def torch_save(folder):
    import torch

    torch.save({k: torch.from_numpy(v) for k, v in arrays().items()}, folder / "state.pt")


def torch_load(folder):
    import torch

    loaded = torch.load(folder / "state.pt", weights_only=True)
    return {k: v.numpy() for k, v in loaded.items()}


def safe_save(folder):
    from safetensors.numpy import save_file

    save_file(arrays(), folder / "state.safetensors")


def safe_load(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "state.safetensors")


def dcp_save(folder):
    import torch
    import torch.distributed.checkpoint as dcp

    dcp.save({k: torch.from_numpy(v) for k, v in arrays().items()}, checkpoint_id=folder / "dcp")


def dcp_load(folder):
    import torch
    import torch.distributed.checkpoint as dcp

    state = {k: torch.zeros(SHAPE) for k in arrays()}
    dcp.load(state, checkpoint_id=folder / "dcp")
    return {k: v.numpy() for k, v in state.items()}


def orbax_save(folder):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as saver:
        saver.save((folder / "orbax").absolute(), arrays())


def orbax_load(folder):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as saver:
        found = saver.restore((folder / "orbax").absolute(), arrays())
    return {k: np.asarray(v) for k, v in found.items()}


def keras_model():
    import keras

    return keras.Sequential([keras.Input(SHAPE[:1]), keras.layers.Dense(SHAPE[1])])


def keras_save(folder):
    model = keras_model()
    model.set_weights([arrays()["w"], np.ones(SHAPE[1], np.float32)])
    model.save_weights(folder / "model.weights.h5")


def keras_load(folder):
    model = keras_model()
    model.load_weights(folder / "model.weights.h5")
    return {str(i): array for i, array in enumerate(model.get_weights())}


def xgb_save(folder):
    import xgboost as xgb

    x = arrays()["w"]
    made = xgb.train({"nthread": 1, "max_depth": 4}, xgb.DMatrix(x, x[:, 0] > 0), 10)
    made.save_model(folder / "model.ubj")


def xgb_load(folder):
    import xgboost as xgb

    raw = xgb.Booster(model_file=folder / "model.ubj").save_raw("ubj")
    return {"model": np.frombuffer(bytes(raw), np.uint8)}


FORMATS = {
    "torch.save": (torch_save, torch_load),
    "safetensors": (safe_save, safe_load),
    "torch dcp": (dcp_save, dcp_load),
    "orbax": (orbax_save, orbax_load),
    "keras .weights.h5": (keras_save, keras_load),
    "xgboost .ubj": (xgb_save, xgb_load),
}


def same(one, other):
    return set(one) == set(other) and all(
        one[k].shape == other[k].shape and one[k].tobytes() == other[k].tobytes() for k in one
    )


def fate_of(load, folder, true):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            found = load(folder)
        except Exception:
            return "refused"
    return "unchanged" if same(found, true) else "silent"


def flipped(clean, spoilt, dice):
    """A copy of the folder with one bit of one file flipped, larger files more often."""
    shutil.rmtree(spoilt, ignore_errors=True)
    shutil.copytree(clean, spoilt)
    files = [path for path in sorted(spoilt.rglob("*")) if path.is_file()]
    target = dice.choices(files, [path.stat().st_size for path in files])[0]
    data = bytearray(target.read_bytes())
    at = dice.randrange(len(data) * 8)
    data[at // 8] ^= 1 << (at % 8)
    target.write_bytes(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--format", choices=list(FORMATS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--flips", type=int, default=40)
    args = parser.parse_args()
    save, load = FORMATS[args.format]
    clean = args.dir / args.format.replace(" ", "-")
    shutil.rmtree(clean, ignore_errors=True)
    clean.mkdir(parents=True)
    save(clean)
    true = load(clean)
    for number in range(args.start, args.flips):
        flipped(clean, args.dir / "spoilt", random.Random(f"{args.seed}/{args.format}/{number}"))
        print(fate_of(load, args.dir / "spoilt", true), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
