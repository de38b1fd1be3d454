"""Digits with Keras: BackupAndRestore, the best model, and a CSVLogger that appends."""

import argparse
import os
import time

import keras
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--epochs", type=int, default=14)
args = parser.parse_args()
keras.utils.set_random_seed(0)


class Pace(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        time.sleep(float(os.environ.get("PACE", "0")))


images, labels = load_digits(return_X_y=True)
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy")
print(f"begins after {os.listdir(args.dir)}", flush=True)
model.fit(
    images,
    labels,
    epochs=args.epochs,
    batch_size=200,
    shuffle=False,
    verbose=2,
    callbacks=[
        Pace(),
        keras.callbacks.BackupAndRestore(os.path.join(args.dir, "backup")),
        keras.callbacks.ModelCheckpoint(
            os.path.join(args.dir, "best.keras"), monitor="loss", save_best_only=True
        ),
        keras.callbacks.CSVLogger(os.path.join(args.dir, "history.log"), append=True),
    ],
)
model.save_weights(args.model)
