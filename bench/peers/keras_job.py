# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""Keras: `BackupAndRestore` and `CSVLogger(append=True)` in `fit`, as its documentation shows."""

import os
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from common import BATCH, HIDDEN, SEED, arguments, begin, data, finish, pace, phase


class Steps(keras.callbacks.Callback):
    """Phases and pace; `from_epoch` is what `BackupAndRestore` went on from."""

    def __init__(self, args):
        super().__init__()
        self.args, self.step = args, None

    def on_epoch_begin(self, epoch, logs=None):
        if self.step is None:
            self.step = epoch * self.params["steps"]
            begin(self.args.dir, self.step)

    def on_train_batch_begin(self, batch, logs=None):
        self.begun, self.phase = time.monotonic(), phase("step")
        self.phase.__enter__()

    def on_train_batch_end(self, batch, logs=None):
        pace(self.begun, self.args)
        self.phase.__exit__(None, None, None)

    def on_test_begin(self, logs=None):
        self.evaluation = phase("evaluation")
        self.evaluation.__enter__()

    def on_test_end(self, logs=None):
        self.evaluation.__exit__(None, None, None)


class Backup(keras.callbacks.BackupAndRestore):
    def on_epoch_end(self, epoch, logs=None):
        with phase("snapshot"):
            super().on_epoch_end(epoch, logs)


def main():
    args = arguments()
    torch.set_num_threads(1)
    keras.utils.set_random_seed(SEED)
    train, test = data()
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(HIDDEN, "relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    epochs = max(2, args.steps * BATCH // len(train[0]))
    model.fit(
        *train,
        batch_size=BATCH,
        epochs=epochs,
        validation_data=test,
        verbose=0,
        callbacks=[
            Backup(args.dir / "backup"),
            keras.callbacks.CSVLogger(args.dir / "rows.csv", append=True),
            Steps(args),
        ],
    )
    with phase("final upload"):
        finish(args.dir, {str(i): array for i, array in enumerate(model.get_weights())})


if __name__ == "__main__":
    main()
