"""Images of digits for the trainers that classify them: scikit-learn's, a CSV, or MNIST's files.

Every reader returns pixels from 0 to 1 as float32 of shape (rows, side, side) and labels as int64,
and raises UsageError for unusable data.
"""

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.trainers import flags, training

if TYPE_CHECKING:
    import numpy as np

    Rows = tuple[np.ndarray, np.ndarray]

CLASSES = tuple(range(10))
SIDE = 8
"""Height and width of scikit-learn's scans, in pixels."""
INK_MOST = 16
"""The darkest pixel value."""
SIDE_LEAST = 4
"""The least height and width; smaller images leave nothing for the second convolutional layer."""
SPLIT_SEED = 1797
TEST_SHARE = 0.2
ROWS_LEAST = 50
IDX_NAMES = {"train": "train", "test": "t10k"}
IDX_UNSIGNED_BYTE = 8


@dataclass(frozen=True)
class Split:
    """Training rows and test rows, each with pixels and labels.

    Raises UsageError if the training rows have only one class, or if the images differ in size.
    """

    train: "Rows"
    test: "Rows"

    def __post_init__(self) -> None:
        training.check_classes(self.train[1])
        size, other = (f"{p.shape[1]} by {p.shape[2]}" for p, _ in (self.train, self.test))
        high, wide = self.train[0].shape[1:]
        if high != wide or high < SIDE_LEAST:
            raise flags.UsageError(
                f"data: images of {size} pixels; must be squares of {SIDE_LEAST} by {SIDE_LEAST} "
                "or more"
            )
        if size != other:
            raise flags.UsageError(
                f"data: images of {size} pixels, but test images of {other}; must be equal"
            )


def split(rows: "Rows", limit_rows: int) -> Split:
    """Hold out a fifth of the first ``limit_rows`` rows (0: all) for testing, drawn once with a
    constant seed, so that every seed is tested on the same rows.
    """
    import numpy as np

    pixels, labels = limited(rows, limit_rows)
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(labels))
    test, train = np.split(order, [round(TEST_SHARE * len(order))])
    return Split((pixels[train], labels[train]), (pixels[test], labels[test]))


def limited(rows: "Rows", limit_rows: int) -> "Rows":
    """The first ``limit_rows`` rows, 0 for all. Raises UsageError if they are too few for a
    training.
    """
    pixels, labels = rows
    count = limit_rows or len(labels)
    if min(count, len(labels)) < ROWS_LEAST:
        raise flags.UsageError(
            f"limit-rows {limit_rows} of {len(labels)} rows: {ROWS_LEAST} or more are needed"
        )
    return pixels[:count], labels[:count]


def scans() -> "Rows":
    """The 1,797 scans of 8 by 8 pixels in scikit-learn."""
    import numpy as np
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (pixels.reshape(-1, SIDE, SIDE) / INK_MOST).astype(np.float32), labels.astype(np.int64)


def csv(path: str) -> "Rows":
    """Rows of 64 pixels (0 to 16) and the digit, comma separated, without a header."""
    import numpy as np

    form = "64 pixels and a digit"
    table = training.table(path, columns=SIDE * SIDE + 1, form=form, least=0, most=INK_MOST)
    if not np.isin(table[:, -1], CLASSES).all():
        raise flags.UsageError(f"data {path}: the last column must be a digit, 0 to 9")
    pixels = table[:, :-1].reshape(-1, SIDE, SIDE) / INK_MOST
    return pixels.astype(np.float32), table[:, -1].astype(np.int64)


def images(config: flags.Config) -> Split:
    """MNIST's rows from the folder ``config.data``, or scikit-learn's scans without one.

    A folder has four files in MNIST's own names and format (IDX), plain or with ``.gz``; with
    ``config.eval_data`` the test rows come from that folder.
    """
    if not config.data:
        if config.eval_data:
            raise flags.UsageError(
                f"eval-data {config.eval_data}: is for MNIST's files; give --data too"
            )
        return split(scans(), config.limit_rows)
    return Split(
        limited(idx(config.data, "train"), config.limit_rows),
        limited(idx(config.eval_data or config.data, "test"), config.limit_rows),
    )


def idx(path: str, part: str) -> "Rows":
    """The rows of ``part``, ``train`` or ``test``, of a folder of MNIST's files."""
    import numpy as np

    folder, prefix = training.data(path), IDX_NAMES[part]
    pixels = _idx_array(folder, f"{prefix}-images-idx3-ubyte", dimensions=3)
    labels = _idx_array(folder, f"{prefix}-labels-idx1-ubyte", dimensions=1)
    if len(pixels) != len(labels):
        raise flags.UsageError(
            f"data {path}: {prefix} has {len(pixels)} images and {len(labels)} labels; "
            "both files must be of the same rows"
        )
    if not np.isin(labels, CLASSES).all():
        raise flags.UsageError(f"data {path}: label {labels.max()}: must be 0 to 9")
    return (pixels / 255).astype(np.float32), labels.astype(np.int64)


def _idx_array(folder: Path, name: str, *, dimensions: int) -> "np.ndarray":
    """One IDX file: two zeros, the type, the number of dimensions, their sizes, the bytes."""
    import numpy as np

    spellings = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    file = next((folder / each for each in spellings if (folder / each).is_file()), None)
    if file is None:
        raise flags.UsageError(
            f"data {folder}: has no {name}, plain or .gz; it must be a folder of MNIST's four files"
        )
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise flags.UsageError(f"data {file}: cannot be read ({error}); fetch it again") from None
    start = 4 + 4 * dimensions
    good = len(content) >= start and content[:4] == bytes((0, 0, IDX_UNSIGNED_BYTE, dimensions))
    shape = struct.unpack(f">{dimensions}I", content[4:start]) if good else ()
    if not good or int(np.prod(shape, dtype=object)) != len(content) - start:
        raise flags.UsageError(
            f"data {file}: is not an IDX file of bytes in {dimensions} dimensions, or was cut; "
            "fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
