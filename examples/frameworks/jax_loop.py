"""JAX and optax with a schedule, dropout, early stopping and the best parameters."""

import argparse
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import outlast


def loss_of(params, x, y, key):
    hidden = jnp.tanh(x @ params["w1"])
    if key is not None:
        hidden = jnp.where(jax.random.bernoulli(key, 0.9, hidden.shape), hidden / 0.9, 0)
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args(argv)
    x = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
    y = np.sin(x.sum(axis=1, keepdims=True))
    one, two, key = jax.random.split(jax.random.key(0), 3)
    params = {"w1": jax.random.normal(one, (8, 32)) / 3, "w2": jax.random.normal(two, (32, 1)) / 6}
    optimizer = optax.adamw(optax.cosine_decay_schedule(0.01, args.steps))

    @jax.jit
    def update(params, opt, x, y, key):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y, key)
        changes, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, changes), opt, loss

    sampler = outlast.BatchSampler(500, batch_size=50, seed=0)
    box = {"params": params, "opt": optimizer.init(params), "key": key}
    box |= {"best": params, "loss": float("inf"), "waited": 0}
    with outlast.train({"box": box, "sampler": sampler}, total=args.steps) as run:
        for step, rows in zip(run.steps(), sampler, strict=False):
            box["key"], now = jax.random.split(box["key"])
            box["params"], box["opt"], loss = update(
                box["params"], box["opt"], x[np.array(rows)], y[np.array(rows)], now
            )
            run.log(loss=float(loss))
            if step % 10 == 0:
                valid = float(loss_of(box["params"], x[500:], y[500:], None))
                run.eval(valid=valid, best="min")
                if valid < box["loss"]:
                    box.update(loss=valid, best=box["params"], waited=0)
                else:
                    box["waited"] += 1
                if box["waited"] == 10:
                    run.finish("no improvement in 10 evaluations")
                    break
        np.savez(run.result("params.npz"), **box["best"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
