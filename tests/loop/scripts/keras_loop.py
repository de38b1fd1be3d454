"""A Keras model whose loop calls train_on_batch: a schedule of Keras', dropout, early stopping."""

import os
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch
from sklearn.datasets import load_digits

import outlast

PAUSE = float(os.environ.get("PAUSE", "0"))
keras.utils.set_random_seed(3)
torch.set_num_threads(1)
digits = load_digits()
x, y = digits.data.astype("float32") / 16, digits.target
x_val, y_val = x[1500:], y[1500:]
inputs = keras.Input((64,))
hidden = keras.layers.Dropout(0.2, seed=4)(keras.layers.Dense(32, "relu")(inputs))
model = keras.Model(inputs, keras.layers.Dense(10, "softmax")(hidden))
rate = keras.optimizers.schedules.CosineDecay(3e-3, 60)
loss_name = "sparse_categorical_crossentropy"
model.compile(keras.optimizers.Adam(rate), loss_name, metrics=["accuracy"])
sampler = outlast.BatchSampler(1500, 64, seed=5)
best = {"loss": float("inf"), "weights": None, "waited": 0}
state = {"model": model, "sampler": sampler, "best": best, "rng": torch.random}
with outlast.train(state, 60, checkpoint_every="3") as run:
    for step, rows in zip(run.steps(), sampler, strict=False):
        loss, accuracy = model.train_on_batch(x[rows], y[rows])
        run.log(loss=float(loss), accuracy=float(accuracy))
        time.sleep(PAUSE)
        if step % 10 == 0:
            predicted = model.predict_on_batch(x_val)
            val = float(-np.log(predicted[np.arange(len(y_val)), y_val] + 1e-9).mean())
            run.eval(val_loss=val)
            if val < best["loss"]:
                best.update(loss=val, weights=model.get_weights(), waited=0)
            else:
                best["waited"] += 1
            if best["waited"] >= 2:
                run.finish(f"early stopping at step {step}")
                break
    np.savez(run.result("weights.npz"), *best["weights"], *model.get_weights())
