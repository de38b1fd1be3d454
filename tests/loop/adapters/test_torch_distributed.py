"""PyTorch's distributed wrappers: those that hold all are taken off, those that shard refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.loop import state
from outlast.loop.errors import StateError
from tests.loop.adapters.through import load, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks
nn = torch.nn
SAYS = "which cannot be saved: it is sharded over the ranks; rank 0 saves what is whole"


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    place = (tmp_path_factory.mktemp("group") / "store").as_uri()
    torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def model() -> "nn.Module":
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_a_checkpoint_knows_nothing_of_ddp(tmp_path: Path) -> None:
    bare, trained = model(), nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.Adam(trained.parameters())
    trained(torch.randn(4, 2)).square().sum().backward()
    optimizer.step()
    nodes, _ = state.capture_all({"model": trained})
    assert list(nodes["model"]["entries"]) == list(bare.state_dict())
    folder = save(tmp_path / "s", {"model": trained, "optimizer": optimizer})
    load(folder, {"model": bare, "optimizer": torch.optim.Adam(bare.parameters())})
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(
            bare.state_dict().values(), trained.module.state_dict().values(), strict=True
        )
    )
    again = nn.parallel.DistributedDataParallel(model())
    load(folder, {"model": again, "optimizer": torch.optim.Adam(again.parameters())})


def test_sharded_parameters_are_refused_by_name() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = model()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(StateError, match=rf"state\['m'\]\.0\.weight is .*DTensor, {SAYS}"):
        state.capture_all({"m": sharded})
    optimizer = torch.optim.Adam(sharded.parameters())
    sharded(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(StateError, match=rf"state\['o'\].*exp_avg'\] is .*DTensor, {SAYS}"):
        state.capture_all({"o": optimizer})


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:FSDP is switching:UserWarning")
def test_a_module_that_gathers_its_shards_is_refused_at_once() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    sharded = nn.Sequential(FullyShardedDataParallel(model(), device_id=torch.device("cpu")))
    with pytest.raises(StateError, match=rf"state\['m'\]\.0 is .*FullyShardedDataParallel, {SAYS}"):
        state.capture_all({"m": sharded})
