"""Checkpoints, logs, results and data."""

from typing import NotRequired, TypedDict


class Checkpoint(TypedDict):
    """A kept checkpoint."""

    part: NotRequired[str]
    """only of a run with parts"""
    step: int
    term: int
    """the attempt that made it"""
    tags: str
    """separated by commas"""
    path: str
    init: str
    """the name by which another run starts from it"""


class LogLine(TypedDict):
    """A line that a trainer wrote, or of a serial port."""

    attempt: int
    """0 for a serial port without --attempt"""
    line: str


class Fetched(TypedDict):
    """A folder with verified files."""

    experiment: str
    run: str
    path: str
    files: list[str]
    step: int | None
    """of a checkpoint, null for a result"""
    written: list[str]
    """files that were made from the rows"""
    without: str
    """why the written files are without a result; else empty"""


class DataUse(TypedDict):
    """A run that names data."""

    experiment: str
    run: str
    state: str
    """`open`, `done`, `failed`, `stopped` or `pruned`"""


class DataListed(TypedDict):
    """Data of one name in the bucket."""

    name: str
    url: str
    files: int
    bytes: int
    crc32c: str
    """of the fingerprint, with the bytes"""
    used_by: list[DataUse]


class DataPushed(TypedDict):
    """Data as it is in the bucket after a push."""

    url: str
    files: int
    bytes: int
    crc32c: str
    """of the fingerprint, with the bytes"""
    sent: int
    """files that were not there, or had changed"""
    deleted: int


class Pulled(TypedDict):
    """A file or folder that was copied from a VM."""

    path: str
    files: int
    bytes: int


class Parameter(TypedDict):
    """One array of a file."""

    file: str
    name: str
    shape: list[int]
    dtype: str
    count: int
    norm: float | None
    """root of the sum of squares, null for what has none"""


class Trees(TypedDict):
    """A model of trees."""

    file: str
    trees: int
    nodes: int
    depth: int
    """of the deepest tree"""
    features: int
    objective: str


class Inspected(TypedDict):
    """What a result or checkpoint holds."""

    parameters: list[Parameter]
    trees: list[Trees]
    others: dict[str, str]
    """files that are only named, with the reason"""
    count: int
    """numbers in all parameters"""
