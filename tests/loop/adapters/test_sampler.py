"""An order that is a function of seed and epoch, and a place in it that is one number."""

from typing import Any

import pytest

from outlast.loop.errors import DoesNotFit, LoopError
from outlast.loop.sampler import BatchSampler, Samplers


def take(sampler: BatchSampler, number: int) -> list[list[int]]:
    return [batch for _, batch in zip(range(number), sampler.over(sampler), strict=False)]


def test_every_epoch_has_every_row_once_in_a_new_order() -> None:
    sampler = BatchSampler(10, 3, seed=1)
    batches = take(sampler, 8)
    assert [len(batch) for batch in batches] == [3, 3, 3, 1] * 2
    first, second = ([row for batch in batches[i : i + 4] for row in batch] for i in (0, 4))
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    assert sampler.position == 8 and sampler.epoch == 2


@pytest.mark.parametrize("at", range(9))
def test_it_resumes_where_it_was(at: int) -> None:
    baseline = take(BatchSampler(10, 3, seed=4), 9)
    first, second = BatchSampler(10, 3, seed=4), BatchSampler(10, 3, seed=4)
    assert take(first, at) == baseline[:at]
    second.load_state_dict(first.state_dict())
    assert take(second, 9 - at) == baseline[at:]


def test_replicas_share_an_epoch() -> None:
    parts = [BatchSampler(13, 2, seed=4, num_replicas=3, rank=rank) for rank in range(3)]
    rows = [row for part in parts for batch in take(part, 2) for row in batch]
    assert len(set(rows)) == 12 and all(part.batches_per_epoch == 2 for part in parts)


def test_options() -> None:
    assert take(BatchSampler(5, 2, shuffle=False, drop_last=True), 3) == [[0, 1], [2, 3], [0, 1]]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"size": 0}, "BatchSampler size 0: must be a number, 1 or more"),
        ({"batch_size": 1.5}, "BatchSampler batch_size 1.5"),
        ({"rank": 1}, "BatchSampler rank 1: must be 0 to 0"),
        ({"batch_size": 20, "drop_last": True}, "10 rows give no full batch"),
    ],
)
def test_a_sampler_without_batches_is_refused(args: dict[str, Any], says: str) -> None:
    with pytest.raises(LoopError) as caught:
        BatchSampler(**{"size": 10, "batch_size": 3, **args})
    assert says in str(caught.value)


def test_another_order_does_not_fit() -> None:
    with pytest.raises(DoesNotFit, match="seed 2: the checkpoint's is 1"):
        BatchSampler(10, 3, seed=2).load_state_dict(BatchSampler(10, 3, seed=1).state_dict())


def test_iterating_before_the_restore_is_named() -> None:
    sampler, other = BatchSampler(10, 3), BatchSampler(10, 3)
    take(other, 2)
    next(iter(sampler))
    with pytest.raises(DoesNotFit, match="was iterated before the restore"):
        sampler.load_state_dict(other.state_dict())


@pytest.mark.parametrize("how", ["direct", "over", "sliced"])
@pytest.mark.parametrize("at", range(9))
def test_its_position_counts_however_it_is_iterated(how: str, at: int) -> None:
    def batches(sampler: BatchSampler, number: int) -> list[list[int]]:
        if how == "over":
            return take(sampler, number)
        if how == "direct":
            return [batch for _, batch in zip(range(number), sampler, strict=False)]
        return [next(iter(sampler)) for _ in range(number)]

    baseline = batches(BatchSampler(10, 3, seed=4), 9)
    first, second = BatchSampler(10, 3, seed=4), BatchSampler(10, 3, seed=4)
    assert batches(first, at) == baseline[:at] and first.position == at
    second.load_state_dict(first.state_dict())
    assert batches(second, 9 - at) == baseline[at:]


def test_an_iterator_made_before_over_is_not_counted_twice() -> None:
    sampler = BatchSampler(10, 3, seed=4)
    loader = (tuple(batch) for batch in sampler)
    assert len([batch for _, batch in zip(range(4), sampler.over(loader), strict=False)]) == 4
    assert sampler.position == 4


def test_a_batch_before_the_first_step_is_refused() -> None:
    sampler = BatchSampler(10, 3)
    samplers = Samplers([{"sampler": sampler}])
    samplers.first_step(resumed=False)
    next(iter(sampler))
    with pytest.raises(LoopError, match=r"state\['sampler'\] has given a batch before the first"):
        samplers.first_step(resumed=False)
    samplers.end()  # another part of the run may continue with it
    samplers.first_step(resumed=False)


@pytest.mark.frameworks
def test_a_loader_that_is_not_in_over_is_refused() -> None:
    data = pytest.importorskip("torch.utils.data")
    sampler = BatchSampler(10, 3)
    with pytest.raises(LoopError, match="iterate sampler.over"):
        next(iter(data.DataLoader(range(10), batch_sampler=sampler)))
