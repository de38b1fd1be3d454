"""Handwritten digits with Keras and its own BackupAndRestore, as the Keras guides write it.

python keras_backup.py --backup-dir DIR --model FILE.keras
"""

import argparse

import keras
from sklearn.datasets import load_digits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backup-dir", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)

    images, labels = load_digits(return_X_y=True)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        images,
        labels,
        epochs=args.epochs,
        batch_size=args.batch_size,
        validation_split=0.2,
        callbacks=[keras.callbacks.BackupAndRestore(args.backup_dir)],
        verbose=2,
    )
    model.save(args.model)


if __name__ == "__main__":
    main()
