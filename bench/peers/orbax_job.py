# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""Orbax: `CheckpointManager` with asynchronous saving, as its documentation shows."""

import time

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from common import HIDDEN, SEED, Rows, arguments, begin, data, finish, order, pace, phase

RATE = 0.1
MOMENTUM = 0.9


def logits(weights, x, key):
    hidden = jax.nn.relu(x @ weights["w1"] + weights["b1"])
    keep = jax.random.bernoulli(key, 0.9, hidden.shape)
    return jnp.where(keep, hidden / 0.9, 0.0) @ weights["w2"] + weights["b2"]


def loss_of(weights, x, y, key):
    found = jax.nn.log_softmax(logits(weights, x, key))
    return -jnp.take_along_axis(found, y[:, None], 1).mean()


@jax.jit
def update(state, x, y):
    key, used = jax.random.split(state["key"])
    loss, slope = jax.value_and_grad(loss_of)(state["weights"], x, y, used)
    speed = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, state["speed"], slope)
    weights = jax.tree.map(jnp.add, state["weights"], speed)
    return {"weights": weights, "speed": speed, "key": key}, loss


def fresh():
    key, one, two = jax.random.split(jax.random.PRNGKey(SEED), 3)
    weights = {
        "w1": jax.random.normal(one, (64, HIDDEN)) * 0.1,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(two, (HIDDEN, 10)) * 0.1,
        "b2": jnp.zeros(10),
    }
    return {"weights": weights, "speed": jax.tree.map(jnp.zeros_like, weights), "key": key}


def main():
    args = arguments()
    (x, y), (test_x, test_y) = data()
    options = ocp.CheckpointManagerOptions(
        max_to_keep=3, save_interval_steps=args.save_every, enable_async_checkpointing=True
    )
    with ocp.CheckpointManager((args.dir / "saved").absolute(), options=options) as manager:
        state, step = fresh(), 0
        if manager.latest_step() is not None:
            step = manager.latest_step()
            state = manager.restore(step, args=ocp.args.StandardRestore(state))
        begin(args.dir, step)
        rows = Rows(args.dir)
        while step < args.steps:
            begun = time.monotonic()
            with phase("step"):
                chosen = order(step, len(x))
                state, loss = update(state, x[chosen], y[chosen])
                step += 1
                rows.write(step, loss=float(loss))
                pace(begun, args)
            if step % args.eval_every == 0:
                with phase("evaluation"):
                    found = logits(state["weights"], test_x, state["key"]).argmax(1)
                    float((found == test_y).mean())
            if step % args.save_every == 0:
                with phase("snapshot"):
                    manager.save(step, args=ocp.args.StandardSave(state))
        with phase("final upload"):
            manager.wait_until_finished()
            finish(args.dir, dict(state["weights"]))


if __name__ == "__main__":
    main()
