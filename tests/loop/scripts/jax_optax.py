"""JAX with optax: pure functions, a key that is split at each step, a cosine rate, the best
parameters, early stopping."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import outlast

PAUSE = float(os.environ.get("PAUSE", "0"))
rows = np.random.default_rng(1).normal(size=(256, 6)).astype(np.float32)
goal = np.sin(rows.sum(1, keepdims=True))
optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 60))
)


def apply(params, x, key):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    kept = jax.random.bernoulli(key, 0.9, hidden.shape)
    return jnp.where(kept, hidden / 0.9, 0) @ params["w2"]


def loss_of(params, x, y, key):
    return jnp.mean((apply(params, x, key) - y) ** 2)


@jax.jit
def train_step(params, opt_state, x, y, key):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y, key)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


one, two, key = jax.random.split(jax.random.key(0), 3)
params = {
    "w1": jax.random.normal(one, (6, 16)) * 0.3,
    "b1": jnp.zeros(16),
    "w2": jax.random.normal(two, (16, 1)) * 0.3,
}
box = {"params": params, "opt": optimizer.init(params), "key": key, "best": params, "loss": 9.0}
box["waited"] = 0
sampler = outlast.BatchSampler(256, 32, seed=2)
with outlast.train({"box": box, "sampler": sampler}, 60, checkpoint_every="3") as run:
    for step, chosen in zip(run.steps(), sampler, strict=False):
        box["key"], now = jax.random.split(box["key"])
        box["params"], box["opt"], loss = train_step(
            box["params"], box["opt"], rows[chosen], goal[chosen], now
        )
        run.log(loss=float(loss))
        time.sleep(PAUSE)
        if step % 8 == 0:
            valid = float(loss_of(box["params"], rows, goal, jax.random.key(9)))
            run.eval(valid=valid)
            if valid < box["loss"]:
                box.update(loss=valid, best=box["params"], waited=0)
            else:
                box["waited"] += 1
            if box["waited"] >= 3:
                run.finish("early stopping")
                break
    np.savez(run.result("params.npz"), **{k: np.asarray(v) for k, v in box["best"].items()})
