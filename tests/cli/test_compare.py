"""Where two results differ is said by the file and the array or value in it."""

import io
import json
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.cli.rehearsal import compare
from outlast.cli.rehearsal.compare import difference
from outlast.loop import snapshot

REST = {"notes.txt": b"x", "config.json": b"{}"}


def of(name: str, one: bytes, other: bytes) -> str:
    return difference({name: one, **REST}, {name: other, **REST})


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def tensors(**arrays: Any) -> bytes:
    header, data = {}, b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        entry = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), end]}
        header[name], data = entry, data + array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


A = np.array([1.0, 2.0, 3.0], np.float32)
B = np.array([1.0, 2.5, 3.0], np.float32)
SAID = "1 of 3 values differ, by up to 0.5"
EQUAL = "; 2 other files are equal"


def test_equal_results_have_no_difference() -> None:
    assert difference(REST, REST) == ""


@pytest.mark.parametrize(
    ("name", "one", "other", "said"),
    [
        ("m.npz", npz(w=A, bias=A), npz(w=A, bias=B), f"m.npz differs (array bias: {SAID})"),
        ("m.npy", npy(A), npy(B), f"m.npy differs (array: {SAID})"),
        ("m.npy", npy(A), npy(A[:2]), "array: [3] <f4, undisturbed [2] <f4"),
        ("m.safetensors", tensors(a=A, w=A), tensors(a=A, w=B), f"array w: {SAID}"),
        ("m.npz", npz(w=A), npz(w=A, b=A), "array b is in one only"),
        ("m.json", b'{"a": {"b": [1, 2]}}', b'{"a": {"b": [1, 3]}}', "value a.b[1]: 2, undist"),
        (
            "m.json",
            b'{"a": 1}',
            b'{ "a": 1}',
            "its content is equal, but not its bytes: first at byte 1",
        ),
        ("log.txt", b"one\ntwo\n", b"one\nzwei\n", "value line 2: 'two', undisturbed 'zwei'"),
        (
            "m.joblib",
            b"abc",
            b"abd",
            "m.joblib differs (a pickle, which is not read; first at",
        ),
        ("m.bin", b"abc", b"abcd", "m.bin differs (first at byte 3, 3 bytes, undisturbed 4)"),
        ("m.npz", npz(w=A), b"PK", "m.npz differs (first at byte 2"),
        ("m.json", b"{", b"[", "m.json differs (first at byte 0 of 1; cannot be read:"),
    ],
)
def test_the_file_and_the_part_that_differ_are_named(
    name: str, one: bytes, other: bytes, said: str
) -> None:
    answer = of(name, one, other)
    assert said in answer and answer.endswith(EQUAL), answer


def test_arrays_that_the_loop_wrote_have_the_names_of_their_places(tmp_path: Path) -> None:
    def written(array: Any) -> dict[str, bytes]:
        values = {"model": {"layers": [A, array]}, "n": 3}
        snapshot.write_values(tmp_path / "model.json", values)
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    answer = difference(written(A.copy()), written(B))
    assert answer == f"model.bin differs (array model.layers[1]: {SAID}); 1 other file is equal"


def test_files_that_one_result_lacks_are_named() -> None:
    assert difference({"a": b""}, {"b": b""}) == (
        "a is not in the undisturbed result; b is only in the undisturbed result; "
        "0 other files are equal"
    )


def test_of_many_differences_the_first_few_are_named() -> None:
    arrays = {f"w{n}": A for n in range(9)}
    answer = of("m.npz", npz(**arrays), npz(**{name: B for name in arrays}))
    assert "array w2" in answer and "array w3" not in answer and "and 6 more" in answer
    many = {f"f{n}": b"1" for n in range(9)}
    assert "and 6 more files" in difference(many, {name: b"2" for name in many})


def test_no_pickle_is_ever_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    file = io.BytesIO()
    np.save(file, np.array([Trap()], dtype=object), allow_pickle=True)
    data = file.getvalue()
    for name in ("m.npy", "m.pkl", "m.joblib"):
        assert f"{name} differs" in of(name, data, data[:-1] + b"x")
    with pytest.raises(Exception):  # noqa: B017 - whatever a half pickle raises
        pickle.loads(b"x")
    assert not (tmp_path / "ran").exists()


def test_an_array_that_is_none_in_the_other_result_is_named() -> None:
    objects = npy(np.array([None], object))
    said = of("a.npy", objects, npy(A))
    assert (
        said == f"a.npy differs (part: {len(objects)} bytes, undisturbed an array [3] <f4){EQUAL}"
    )
    assert of("a.npy", npy(A)[:20], npy(A)).startswith("a.npy differs (part: 20 bytes, ")


def test_an_archive_that_unpacks_to_much_more_than_it_is_is_not_unpacked() -> None:
    """A bomb in a result would take the memory of the machine that rehearses."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(6):
            archive.writestr(f"{number}.npy", bytes(64 << 20))
    bomb = file.getvalue()
    tracemalloc.start()
    said = of("m.npz", bomb, npz(w=A))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "cannot be read: unpacked it has 402653184 bytes, more than 268435456" in said
    assert peak < 16 << 20
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:  # nor is one in another
        archive.writestr("inner.zip", bomb)
    inner = file.getvalue()
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("inner.zip", bomb[:-1] + b"x")
    assert "part inner.zip: first at byte" in of("m.zip", inner, file.getvalue())


def test_a_large_archive_that_is_not_compressed_is_compared(monkeypatch) -> None:
    monkeypatch.setattr(compare, "UNPACKED_BYTES_MAX", 1000)
    large = np.arange(100_000.0)
    assert f"array w: {SAID.replace('3', '100000')}" in of(
        "m.npz", npz(w=large), npz(w=np.r_[0.5, large[1:]])
    )


def test_arrays_whose_bytes_do_not_fit_their_shape_are_named(tmp_path: Path) -> None:
    snapshot.write_values(tmp_path / "m.json", {"w": A})
    text, data = ((tmp_path / f"m.{suffix}").read_bytes() for suffix in ("json", "bin"))
    said = difference({"m.json": text, "m.bin": data[:7]}, {"m.json": text, "m.bin": data})
    assert said.startswith("m.bin differs (first at byte 7, 7 bytes, undisturbed 12; cannot be ")
