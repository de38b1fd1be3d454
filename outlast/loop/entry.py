"""``outlast.train``."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from outlast.base.console import fill_descriptors
from outlast.loop import local
from outlast.loop.errors import LoopError, report_as_sentences
from outlast.loop.training import Training
from outlast.protocol import check_part_name, parse_every


def train(
    state: Mapping[str, object],
    total: int | None = None,
    *,
    part: str | None = None,
    restore_done: bool = True,
    run_dir: str | Path | None = None,
    name: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    source: str | Path | None = None,
    checkpoint_every: str | int = "auto",
    rank_state: Mapping[str, object] | None = None,
    tracker: str | None = None,
    init: str | None = None,
    init_only: Collection[str] | None = None,
    model_output_path: str | None = None,
    constant: Collection[str] = (),
) -> Training:
    """Train ``total`` steps, as a context manager; without ``total``, until the loop is left.

    With a total, leaving the loop before its last step does not complete the training and raises
    LeftEarly, unless ``run.finish`` was called. A request to stop exits with 75 at the end of the
    ``with`` block at the latest, even if the program ignores it.

    ``state`` names the objects that make up the training: numpy arrays and generators,
    ``random.Random``, dicts and lists, scikit-learn estimators, and anything with ``state_dict``
    and ``load_state_dict``. They are restored in place. An object that cannot be saved raises a
    StateError that names it, before the first step.

    ``part`` names one of several trainings of this program, which are then consecutive parts of one
    run (folds of a cross-validation, for example). Each resumes by itself. A part that is already
    done makes no step, and its state and ``run.evals`` are as at its end. The run is done when the
    program ends with exit code 0 and every part that has begun is done. With ``restore_done=False``
    the state of a part that is done is not restored and stays as the program made it, so that a
    program with many parts that needs only their evaluations and results restarts quickly.

    ``constant`` names entries of ``state`` that need never change, such as an array of data. It
    also names global generators (``random``, ``numpy.random``, ``torch.random``, ``keras.random``)
    that steps draw from and that the state does not have, because the result does not depend on
    them; and places of the program that a warning has named, such as ``trainer.losses``: objects or
    attributes that steps change and that are not saved. An array or tensor that never changes and
    is not named here is reported, and a resume is refused, because the program may use another
    object in its place (``w = w + 1``).

    Under ``torchrun`` every rank makes the same call. ``state`` is equal in all ranks: rank 0 saves
    it and all restore it. ``rank_state`` differs, such as random numbers and the position in a
    rank's share of the data: each rank saves and restores its own.

    ``tracker`` (or ``OUTLAST_TRACKER``) is ``mlflow`` or ``wandb``, which also gets every row, in
    one tracker run for the whole run. Training never waits for it.

    A run may begin with another run's checkpoint (``outlast:init``, ``init``). It takes the entries
    of ``state``, or only those in ``init_only``, from there; the steps begin at 1, the history is
    empty, and ``rank_state`` starts from scratch. Everything else in that checkpoint is ignored,
    such as an optimiser that is not in ``state`` or not in ``init_only``.

    The other arguments apply only without ``OUTLAST_SOCKET``, to a run in a folder: ``init``, a
    checkpoint as ``outlast checkpoints`` prints it; ``model_output_path``, a folder or ``gs://``
    path that gets a copy of the finished result if it has none yet; ``run_dir``, a folder or
    ``gs://`` path (default ``runs/<name>-<run>``); and the values that determine the run's name:
    ``name``, ``arguments`` and ``source`` (default: this program, its command line and its text).
    """
    report_as_sentences()
    fill_descriptors()
    if part is not None:
        try:
            check_part_name(part)
        except ValueError as error:
            raise LoopError(str(error)) from None
    options = local.Options(
        run_dir, name, arguments, source, _every(checkpoint_every), init, model_output_path
    )
    return Training(
        state,
        total,
        options,
        part=part or "",
        restore_done=restore_done,
        rank_state=rank_state,
        tracker=tracker,
        init_only=init_only,
        constant=constant,
    )


def _every(given: object) -> str:
    """``checkpoint_every`` as text; LoopError if it is invalid."""
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    try:
        parse_every(given if isinstance(given, str) else repr(given))
    except ValueError:
        rule = "must be 'auto', seconds such as '30s', or steps such as 200"
        raise LoopError(f"checkpoint_every {given!r}: {rule}") from None
    return str(given)
