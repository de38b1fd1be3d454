"""JAX with Optax, and Orbax's CheckpointManager as its guide writes it."""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--epochs", type=int, default=14)
args = parser.parse_args()
pixels, digits = load_digits(return_X_y=True)
rows, labels = jnp.array(pixels / 16, jnp.float32), jnp.array(digits)
keys = jax.random.split(jax.random.key(0), 2)
params = {
    "hidden": jax.random.normal(keys[0], (64, 16)) * 0.1,
    "out": jax.random.normal(keys[1], (16, 10)) * 0.1,
}
optimizer = optax.adam(optax.exponential_decay(1e-2, 20, 0.9))
state = {"params": params, "opt": optimizer.init(params)}


@jax.jit
def update(state, batch):
    def loss(params):
        logits = jnp.tanh(rows[batch] @ params["hidden"]) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[batch]).mean()

    updates, opt = optimizer.update(jax.grad(loss)(state["params"]), state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}


manager = ocp.CheckpointManager(
    os.path.abspath(args.dir), options=ocp.CheckpointManagerOptions(max_to_keep=2)
)
done = manager.latest_step()
if done is not None:
    state = manager.restore(done, args=ocp.args.StandardRestore(state))
print(f"begins after {done or 0}", flush=True)
for epoch in range((done or 0) + 1, args.epochs + 1):
    order = jax.random.permutation(jax.random.fold_in(jax.random.key(1), epoch), len(rows))
    for batch in order[:1792].reshape(-1, 128):
        state = update(state, batch)
    manager.save(epoch, args=ocp.args.StandardSave(state))
    time.sleep(float(os.environ.get("PACE", "0")))
manager.wait_until_finished()
np.savez(args.model, **{name: np.asarray(value) for name, value in state["params"].items()})
