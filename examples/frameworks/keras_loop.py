"""A Keras model with a schedule, dropout, early stopping and the best weights."""

import argparse
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

import outlast  # noqa: E402


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args(argv)
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    inputs = keras.Input((64,))
    hidden = keras.layers.Dense(64, "relu")(inputs)
    hidden = keras.layers.Dropout(0.2, seed=1)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(10, "softmax")(hidden))
    rate = keras.optimizers.schedules.CosineDecay(0.003, args.steps)
    loss_name = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(rate), loss_name, metrics=["accuracy"])
    sampler = outlast.BatchSampler(1500, batch_size=50, seed=0)
    best = {"loss": float("inf"), "weights": None, "waited": 0}
    state = {"model": model, "sampler": sampler, "best": best}
    with outlast.train(state, total=args.steps) as run:
        for step, rows in zip(run.steps(), sampler, strict=False):
            loss, accuracy = model.train_on_batch(x[rows], y[rows])
            run.log(loss=loss, accuracy=accuracy)
            if step % 10 == 0:
                outputs = keras.ops.convert_to_tensor(model.predict_on_batch(x[1500:]))
                losses = keras.losses.sparse_categorical_crossentropy(y[1500:], outputs)
                valid = float(keras.ops.mean(losses))
                run.eval(valid=valid, best="min")
                if valid < best["loss"]:
                    best.update(loss=valid, weights=model.get_weights(), waited=0)
                else:
                    best["waited"] += 1
                if best["waited"] == 10:
                    run.finish("no improvement in 10 evaluations")
                    break
        model.set_weights(best["weights"])
        model.save_weights(run.result("model.weights.h5"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
