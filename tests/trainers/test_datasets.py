"""MNIST's files, plain and gzipped, and what is refused."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from outlast.trainers import datasets, dummy
from outlast.trainers.flags import UsageError


def write_idx(folder: Path, *, rows: int = 60, zipped: bool = False) -> None:
    """The four files, the pixels and labels made up."""
    folder.mkdir(exist_ok=True)
    for prefix, seed in (("train", 1), ("t10k", 2)):
        generator = np.random.default_rng(seed)
        pixels = generator.integers(0, 256, (rows, 28, 28), np.uint8)
        labels = generator.integers(0, 10, rows, np.uint8)
        write(folder / f"{prefix}-images-idx3-ubyte", pixels, zipped=zipped)
        write(folder / f"{prefix}-labels-idx1-ubyte", labels, zipped=zipped)


def write(path: Path, array: np.ndarray, *, zipped: bool) -> None:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content = head + array.tobytes()
    if zipped:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def images(*argv: str) -> datasets.Split:
    return datasets.images(dummy.Config.of(dummy.parser().parse_args(argv)))


@pytest.mark.parametrize("zipped", [False, True])
def test_mnists_files_are_read(tmp_path: Path, zipped: bool) -> None:
    write_idx(tmp_path / "mnist", zipped=zipped)
    found = images("--data", str(tmp_path / "mnist"), "--limit-rows", "50")
    pixels, labels = found.train
    assert pixels.shape == (50, 28, 28) and pixels.dtype == np.float32 and labels.dtype == np.int64
    expected = np.random.default_rng(1).integers(0, 256, (60, 28, 28), np.uint8)
    assert np.array_equal(np.round(pixels * 255), expected[:50])
    assert not np.array_equal(found.test[0], pixels)


def test_test_rows_may_come_from_another_folder(tmp_path: Path) -> None:
    write_idx(tmp_path / "a", rows=60)
    write_idx(tmp_path / "b", rows=70)
    found = images("--data", str(tmp_path / "a"), "--eval-data", str(tmp_path / "b"))
    assert (len(found.train[1]), len(found.test[1])) == (60, 70)


def test_files_that_are_not_mnist_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    with pytest.raises(UsageError, match="has no train-images-idx3-ubyte, plain or .gz"):
        images("--data", str(folder))
    write_idx(folder)
    file = folder / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for content in (whole[:-1], whole[:7], b"", b"\1" + whole[1:]):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="is not an IDX file of bytes in 3 dimensions"):
            images("--data", str(folder))
    file.unlink()
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(whole)[:-9])
    with pytest.raises(UsageError, match="cannot be read"):
        images("--data", str(folder))
    write(file, np.zeros((59, 28, 28), np.uint8), zipped=False)
    with pytest.raises(UsageError, match="59 images and 60 labels"):
        images("--data", str(folder))
    with pytest.raises(UsageError, match="give --data too"):
        images("--eval-data", str(folder))


@pytest.mark.parametrize(
    ("side", "test_side", "label", "says"),
    [
        (28, 14, None, "images of 28 by 28 pixels, but test images of 14 by 14; must be equal"),
        (1, 1, None, "images of 1 by 1 pixels; must be squares of 4 by 4 or more"),
        (28, 28, 3, "60 rows to train on, all of class 3"),
    ],
)
def test_images_that_teach_nothing_are_refused(
    tmp_path: Path, side: int, test_side: int, label: int | None, says: str
) -> None:
    write_idx(tmp_path)
    for prefix, size in (("train", side), ("t10k", test_side)):
        pixels = np.zeros((60, size, size), np.uint8)
        write(tmp_path / f"{prefix}-images-idx3-ubyte", pixels, zipped=False)
    if label is not None:
        labels = np.full(60, label, np.uint8)
        write(tmp_path / "train-labels-idx1-ubyte", labels, zipped=False)
    with pytest.raises(UsageError, match=says):
        images("--data", str(tmp_path))
