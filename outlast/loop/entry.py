"""``outlast.train``."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from outlast.base.console import fill_descriptors
from outlast.loop import local
from outlast.loop.errors import LoopError, tell_alone
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
    """A training of ``total`` steps as a context manager; without ``total``, of as many steps as
    the loop makes until it is left.

    With a total, a loop that is left before its last step has not ended the training: LeftEarly,
    unless ``run.finish`` said that it is over. A request to stop exits with 75 at the end of the
    ``with`` block at the latest, whatever the program did with it.

    ``state`` names the objects that make up the training: numpy arrays and generators,
    ``random.Random``, dicts and lists, scikit-learn estimators, and anything with ``state_dict``
    and ``load_state_dict``. They are restored in place. What cannot be saved is a StateError that
    names it, before the first step.

    ``part`` names one of several trainings of this program, which then are the parts of one run,
    one after the other (folds of a cross-validation, say). Each resumes by itself. One that is done
    already makes no step: its state and ``run.evals`` are as it ended. The run is done when the
    program ends with exit code 0 and every part that was begun is done. With ``restore_done=False``
    the state of a part that is done is not read, and stays as the program has made it: a program
    with many parts that needs their evaluations and results alone starts again at once.

    ``constant`` names entries of ``state`` that may never change, such as an array of data, and
    global generators (``random``, ``numpy.random``, ``torch.random``, ``keras.random``) that the
    state does not have although steps draw from them, since the result does not depend on what they
    give; and, likewise, places of the program that a warning has named, such as ``trainer.losses``:
    objects or attributes that steps change and that are not saved. Of an
    array or tensor that is not named there and never changed, nothing tells whether the program
    uses another one in its place (``w = w + 1``): it is reported, and a resume is refused.

    Under ``torchrun`` every rank calls this alike: ``state`` is what is equal in all ranks (rank 0
    saves it, all restore it), ``rank_state`` what differs, such as random numbers and the position
    in a rank's share of the data; each rank saves and restores its own.

    ``tracker`` (or ``OUTLAST_TRACKER``), ``mlflow`` or ``wandb``, is given every row as well: one
    tracker's run for the whole run, never waited for.

    A run may begin with a checkpoint of another one (``outlast:init``, ``init``): what ``state``
    names is taken from there, or of that only the names in ``init_only``; the steps begin at 1, the
    history is empty, ``rank_state`` starts from scratch. Anything else in that checkpoint does not
    matter, so an optimiser that ``state`` does not name, or ``init_only`` leaves out, is not kept.

    The other arguments matter only without ``OUTLAST_SOCKET``, for a run in a folder: ``init``, a
    checkpoint as ``outlast checkpoints`` prints it; ``model_output_path``, a folder or ``gs://``
    path that gets a copy of the finished result where it is absent there; ``run_dir``, a folder or
    ``gs://`` path (default ``runs/<name>-<run>``), and what the run's name is made of: ``name``,
    ``arguments`` and ``source`` (default: this program, its command line and its text).
    """
    tell_alone()
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
    """``checkpoint_every`` as text; LoopError if it is none of its forms."""
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    try:
        parse_every(given if isinstance(given, str) else repr(given))
    except ValueError:
        rule = "must be 'auto', seconds such as '30s', or steps such as 200"
        raise LoopError(f"checkpoint_every {given!r}: {rule}") from None
    return str(given)
