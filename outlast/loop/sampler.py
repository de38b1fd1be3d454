"""Batches whose order is a function of seed and epoch, so that the position is one number."""

import contextlib
import random
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from outlast.loop import state
from outlast.loop.errors import DoesNotFit, LoopError
from outlast.loop.taken import Taken

Batch = TypeVar("Batch")
_LOADER = "torch.utils.data.dataloader"
_reads: "set[BatchSampler] | None" = None
"""Samplers whose position was read, while reads are observed."""


class BatchSampler:
    """Endless batches of row numbers, epoch after epoch. Put the sampler into a training's state.

    Alone (``zip(run.steps(), sampler)``), or as ``batch_sampler`` of a
    ``torch.utils.data.DataLoader`` with any number of workers, through ``over``::

        sampler = BatchSampler(len(dataset), batch_size=64, seed=1)
        loader = DataLoader(dataset, batch_sampler=sampler)
        with outlast.train(state={..., "sampler": sampler}, total=steps) as run:
            for step, batch in zip(run.steps(), sampler.over(loader)):

    ``position`` counts the batches given to the training, not those that workers fetched ahead. Ask
    for the step first and then for its batch, as ``zip`` does above: LoopError if a batch is taken
    before the first step, by a DataLoader without ``over``, or by another thread. A batch counts as
    used when it is given out, so a resume loses the contents of a program's own buffer. Therefore a
    resume is refused if the first step took more batches than others, or if steps took different
    numbers; ``uneven`` declares that they do and that each step uses all batches that it takes. A
    transform that needs random numbers in a worker must derive them from the row's number, because
    a worker's own generator restarts in each attempt.

    ``size`` is the number of rows. The last batch of an epoch is shorter, or left out with
    ``drop_last``. With ``num_replicas`` processes, each takes the batches of its ``rank`` from the
    same order, and an epoch ends at the same step for all. LoopError if the size gives no batch.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        num_replicas: int = 1,
        rank: int = 0,
        uneven: bool = False,
    ) -> None:
        for name, value in (("size", size), ("batch_size", batch_size), ("replicas", num_replicas)):
            if type(value) is not int or value < 1:
                raise LoopError(f"BatchSampler {name} {value!r}: must be a number, 1 or more")
        if not 0 <= rank < num_replicas:
            raise LoopError(f"BatchSampler rank {rank!r}: must be 0 to {num_replicas - 1}")
        self._position = 0
        self._order = {
            "size": size,
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "drop_last": drop_last or num_replicas > 1,
            "num_replicas": num_replicas,
        }
        self._rank = rank
        rows = batch_size * num_replicas
        self.batches_per_epoch = size // rows if self._order["drop_last"] else -(-size // rows)
        if not self.batches_per_epoch:
            raise LoopError(
                f"BatchSampler batch_size {batch_size}: {size} rows give no full batch for "
                f"{num_replicas} processes; make it smaller"
            )
        self._begun = False
        self._in_over = False
        self._taken = Taken(uneven=uneven)
        _all.add(self)

    @property
    def position(self) -> int:
        """Batches given out since the first epoch began; checkpoints keep this number."""
        if _reads is not None:
            _reads.add(self)
        return self._position

    @position.setter
    def position(self, value: int) -> None:
        self._position = value

    @property
    def epoch(self) -> int:
        """Complete epochs."""
        return self.position // self.batches_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Endless batches from ``position`` on. Each one counts when it is given out, except inside
        ``over``, which counts the batches that leave the loader."""
        if not self._in_over and sys._getframe(1).f_globals.get("__name__") == _LOADER:
            # It would fetch ahead, and draw a seed that a resumed run draws again.
            raise LoopError(
                "BatchSampler: a DataLoader fetches batches ahead of the training; iterate "
                "sampler.over(loader) instead of the loader"
            )
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        position, epoch, order = self._position, -1, []
        rows = self._order["batch_size"] * self._order["num_replicas"]
        while True:
            self._begun = True
            if not self._in_over:
                position = self._position
                self._give_out()
            if position // self.batches_per_epoch != epoch:
                epoch = position // self.batches_per_epoch
                order = self._permutation(epoch)
            start = position % self.batches_per_epoch * rows
            yield order[start : start + rows][self._rank :: self._order["num_replicas"]]
            position += 1

    def over(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of ``loader``, in this sampler's order, counting those given out.

        Starts at the first request for a batch, which must come after the restore, in the body of
        ``outlast.train``.
        """
        self._in_over = True
        try:
            for batch in _begin(loader):
                self._begun = True
                self._give_out()
                yield batch
        finally:
            self._in_over = False

    def _give_out(self) -> None:
        self._position += 1
        self._taken.add()

    def state_dict(self) -> dict[str, Any]:
        """The position, the parameters of the order, and the number of batches per step."""
        note = self._taken.note()
        return {"position": self.position, **self._order, **({"taken": note} if note else {})}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue at a saved position; DoesNotFit names a parameter that changes the order."""
        for name, ours in self._order.items():
            if values[name] != ours:
                raise DoesNotFit(
                    f"BatchSampler has {name} {ours!r}: the checkpoint's is {values[name]!r}; "
                    "another order is a new run"
                )
        if self._begun and values["position"] != self._position:
            raise DoesNotFit(
                "BatchSampler was iterated before the restore: start in the body of outlast.train"
            )
        self._position = values["position"]
        self._taken.take_note(values.get("taken", []))

    def _permutation(self, epoch: int) -> list[int]:
        order = list(range(self._order["size"]))
        if self._order["shuffle"]:
            random.Random(f"{self._order['seed']} {epoch}").shuffle(order)
        return order


_all: "weakref.WeakSet[BatchSampler]" = weakref.WeakSet()


class Samplers:
    """The samplers of one training, at any depth in its states."""

    def __init__(self, states: Iterable[Mapping[str, object] | None]) -> None:
        self._states = [values for values in states if values is not None]
        self._found: list[tuple[str, BatchSampler]] = []

    def first_step(self, *, resumed: bool) -> None:
        """Begin the first step. LoopError if a sampler has already given a batch, DoesNotFit if its
        steps before the checkpoint took different numbers of batches."""
        self._found = list(self._find()) if _all else []
        for place, sampler in self._found:
            if sampler._begun:
                raise LoopError(
                    f"{place} has given a batch before the first step, which a resumed run "
                    "would lose; ask for the step first: zip(run.steps(), sampler)"
                )
            sampler._taken.begin(place, resumed=resumed)

    def step_made(self) -> list[str]:
        """Note a complete step; return sentences to print. LoopError if the program reads a sampler
        ahead of its steps, DoesNotFit after a resume."""
        return [
            sentence
            for place, sampler in self._found
            for sentence in sampler._taken.step_made(
                place, epoch_ends=sampler._position % sampler.batches_per_epoch == 0
            )
        ]

    def end(self) -> None:
        """End the loop, so that another training may use the samplers."""
        for _, sampler in self._found:
            sampler._begun = False
            sampler._taken.end()

    def _find(self) -> Iterator[tuple[str, BatchSampler]]:
        """The samplers whose position is saved, by their own ``state_dict`` or by that of an object
        that holds them."""
        for values in self._states:
            with _looking() as reads:
                _, blobs = state.capture_all(values)
            places = {id(item): path for path, item in blobs.owned.items()}
            for sampler in reads:
                yield places.get(id(sampler), "a BatchSampler in the state"), sampler


@contextlib.contextmanager
def _looking() -> "Iterator[set[BatchSampler]]":
    global _reads
    _reads = found = set()
    try:
        yield found
    finally:
        _reads = None


def _begin(loader: Iterable[Batch]) -> Iterator[Batch]:
    """Make an iterator without changing torch's random numbers.

    A DataLoader draws a seed for its workers when it begins, and a resumed run would draw one more.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return iter(loader)
    before = torch.get_rng_state()
    try:
        return iter(loader)
    finally:
        torch.set_rng_state(before)
