"""PyTorch: saved state resumes bit for bit, and what does not fit is named."""

from pathlib import Path
from typing import Any

import pytest

from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.sampler import BatchSampler
from tests.loop.adapters.through import load, same, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks
nn = torch.nn

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64",
    "complex128", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip


def bits(tensor: Any) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist())


def raw(dtype: str, *shape: int) -> Any:
    """A tensor of arbitrary bits."""
    kind = getattr(torch, dtype)
    size = torch.empty(shape, dtype=kind).nbytes
    generator = torch.Generator().manual_seed(1)
    high = 2 if dtype == "bool" else 256
    return (
        torch.randint(0, high, (size,), dtype=torch.uint8, generator=generator)
        .view(kind)
        .reshape(shape)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_keep_their_bits(tmp_path: Path, dtype: str) -> None:
    value = raw(dtype, 3, 5)
    target, box = torch.zeros_like(value), {}
    parts = {"new": value.clone(), "number": value[1, 1].clone(), "none": value[:0].clone()}
    load(save(tmp_path / "s", {"t": value, "box": parts}), {"t": target, "box": box})
    assert target.dtype == value.dtype and bits(target) == bits(value)
    assert bits(box["new"]) == bits(value) and bits(box["number"]) == bits(value[1, 1])
    assert box["none"].shape == (0, 5) and box["none"].dtype == value.dtype


def test_the_order_in_memory_is_kept(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    source = {
        "box": {"image": image, "turned": torch.randn(3, 4).t(), "part": torch.randn(4, 4)[:, :2]}
    }
    box: dict[str, Any] = {}
    load(save(tmp_path / "s", source), {"box": box})
    assert box["image"].stride() == image.stride() and box["turned"].stride() == (1, 4)
    assert torch.equal(box["part"], source["box"]["part"]) and box["part"].is_contiguous()


def test_parameters_come_back_as_parameters(tmp_path: Path) -> None:
    source = {"box": {"p": nn.Parameter(torch.ones(2)), "q": torch.ones(1, requires_grad=True)}}
    box: dict[str, Any] = {}
    load(save(tmp_path / "s", source), {"box": box})
    assert isinstance(box["p"], nn.Parameter) and box["p"].requires_grad
    assert not isinstance(box["q"], nn.Parameter) and box["q"].requires_grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "it is quantised"),
        (lambda: torch.eye(2).to_sparse(), "of layout torch.sparse_coo"),
        (lambda: torch.ones(2, device="meta"), "on the meta device"),
        (lambda: torch.ones(1).expand(3), "expanded: several elements are one"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "a conjugated or negated view"),
        (lambda: torch.ones(2, requires_grad=True) * 2, "that gradients flow through; detach it"),
        (lambda: nn.LazyLinear(3), "not initialised; run one batch"),
        (lambda: torch.utils.data.DataLoader([1, 2]), "DataLoader, which cannot be saved"),
        (lambda: {"a": torch.zeros(4)[:3], "b": torch.zeros(4)}, None),
    ],
)
def test_unsavable_state_is_refused_by_name(tmp_path: Path, make: Any, says: str | None) -> None:
    if says is None:
        save(tmp_path / "s", {"x": make()})
        assert (tmp_path / "s" / "state.json").exists()
        return
    with pytest.raises(StateError) as caught:
        save(tmp_path / "s", {"x": make()})
    assert "state['x']" in str(caught.value) and says in str(caught.value)


def test_views_that_overlap_are_named(tmp_path: Path) -> None:
    base = torch.zeros(6)
    for other in (base[2:], base.view(2, 3), base.view(torch.int32)):
        with pytest.raises(StateError, match=r"\['b'\] shares a part of its memory with .*\['a'\]"):
            save(tmp_path / "s", {"x": {"a": base, "b": other}})
    save(tmp_path / "s", {"x": {"a": base[:3], "b": base[3:], "c": base[:3]}})
    box: dict[str, Any] = {}
    load(tmp_path / "s", {"x": box})
    assert box["a"] is box["c"]


class Net(nn.Module):
    """Parameters, tied ones, both kinds of buffers, extra state."""

    def __init__(self, seed: int, *, tied: bool = True, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(10, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, 10, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.notes = {"seed": seed}

    def get_extra_state(self) -> Any:
        return {"notes": self.notes, "list": [1, (2.5, None)]}

    def set_extra_state(self, values: Any) -> None:
        self.notes = values["notes"]

    def forward(self, rows: Any) -> Any:
        self.seen += 1
        return self.head(self.drop(self.norm(self.embed(rows))))


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "AdamW-foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "AdamW-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "Adam-tensor-lr": lambda p: torch.optim.Adam(p, torch.tensor(0.01)),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
}


def step(model: Any, optimizer: Any, scheduler: Any = None) -> None:
    rows = torch.randint(0, 10, (12,))  # the data too follow the global generator

    def loss() -> Any:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(rows).float(), rows)
        value.backward()
        return value

    optimizer.step(loss)
    if scheduler is not None:
        scheduler.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("target_steps", [0, 1])
def test_training_resumes_as_if_never_stopped(tmp_path: Path, name: str, target_steps: int) -> None:
    def build(seed: int) -> dict[str, Any]:
        model = Net(seed)
        optimizer = OPTIMIZERS[name](model.parameters())
        return {"model": model, "optimizer": optimizer, "rng": torch.random}

    mine = build(1)
    for _ in range(3):
        step(mine["model"], mine["optimizer"])
    save(tmp_path / "s", mine)
    for _ in range(2):
        step(mine["model"], mine["optimizer"])
    baseline = save(tmp_path / "baseline", mine)

    theirs = build(2)
    for _ in range(target_steps):
        step(theirs["model"], theirs["optimizer"])
    load(tmp_path / "s", theirs)
    for _ in range(2):
        step(theirs["model"], theirs["optimizer"])
    again = save(tmp_path / "again", theirs)
    for file in ("state.json", "arrays.bin"):
        assert (baseline / file).read_bytes() == (again / file).read_bytes()
    assert theirs["model"].head.weight is theirs["model"].embed.weight
    assert theirs["model"].notes == {"seed": 1}


SCHEDULERS = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        o, 3
    ),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [2],
    ),
    "ChainedScheduler": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=3),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_resume(tmp_path: Path, name: str) -> None:
    def build() -> dict[str, Any]:
        model = Net(1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return {"m": model, "o": optimizer, "s": SCHEDULERS[name](optimizer), "rng": torch.random}

    def rates(state: dict[str, Any]) -> list[float]:
        found = []
        for _ in range(4):
            step(state["m"], state["o"], state["s"])
            found.append(state["o"].param_groups[0]["lr"])
        return found

    mine, theirs = build(), build()
    rates(mine)
    save(tmp_path / "s", mine)
    expected = rates(mine)
    load(tmp_path / "s", theirs)
    assert rates(theirs) == expected
    assert same(mine, theirs) is None


def test_a_plateau_is_remembered(tmp_path: Path) -> None:
    def build() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
        return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

    (mine, mine_plateau), (theirs, theirs_plateau) = build(), build()
    for loss in (1.0, 2.0):
        mine_plateau.step(loss)
    save(tmp_path / "s", {"o": mine, "s": mine_plateau})
    load(tmp_path / "s", {"o": theirs, "s": theirs_plateau})
    for each in (mine_plateau, theirs_plateau):
        each.step(2.0)
    assert theirs.param_groups[0]["lr"] == mine.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_scalers_scale_comes_back(tmp_path: Path) -> None:
    mine, theirs = (torch.amp.GradScaler("cpu", init_scale=s) for s in (8.0, 4.0))
    load(save(tmp_path / "s", {"scaler": mine}), {"scaler": theirs})
    assert theirs.get_scale() == 8.0
    off = torch.amp.GradScaler("cpu", enabled=False)
    with pytest.raises(DoesNotFit, match="state\\['scaler'\\]"):
        load(save(tmp_path / "off", {"scaler": off}), {"scaler": theirs})


def test_groups_keep_their_order_and_settings(tmp_path: Path) -> None:
    def build(rate: float) -> tuple[Any, Any]:
        model = Net(1, tied=False)
        groups = [
            {"params": [model.head.weight], "lr": rate, "weight_decay": 0.0},
            {"params": list(model.norm.parameters()), "lr": rate / 2, "name": "norm"},
        ]
        return model, torch.optim.AdamW(groups)

    (model, mine), (_, theirs) = build(0.1), build(0.5)
    load(save(tmp_path / "s", {"o": mine}), {"o": theirs})
    assert [group["lr"] for group in theirs.param_groups] == [0.1, 0.05]
    assert theirs.param_groups[1]["name"] == "norm"
    fewer = torch.optim.AdamW(model.parameters())
    with pytest.raises(
        DoesNotFit, match=r"groups of \[4\] parameters: the checkpoint's has \[1, 2\]"
    ):
        load(tmp_path / "s", {"o": fewer})


def test_the_dtype_of_an_optimisers_state_is_kept(tmp_path: Path) -> None:
    """load_state_dict alone casts float32 moments to the dtype of bfloat16 parameters."""

    def build() -> tuple[Any, Any]:
        param = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        optimizer = torch.optim.Adam([param])
        param.grad = torch.ones_like(param)
        optimizer.step()
        optimizer.state[param]["exp_avg"] = torch.tensor([0.1, 1e-9, 3.0])
        return param, optimizer

    (_, mine), (param, theirs) = build(), build()
    theirs.state[param]["exp_avg"] = torch.zeros(3)
    load(save(tmp_path / "s", {"o": mine}), {"o": theirs})
    assert theirs.state[param]["exp_avg"].dtype == torch.float32
    assert theirs.state[param]["exp_avg"].tolist() == torch.tensor([0.1, 1e-9, 3.0]).tolist()


def test_wrappers_are_removed(tmp_path: Path) -> None:
    plain, other = Net(1), Net(2)
    load(save(tmp_path / "s", {"m": torch.compile(plain)}), {"m": other})
    assert same({"m": plain}, {"m": other}) is None
    inner = nn.Sequential(torch.compile(nn.Linear(2, 2)), nn.Linear(2, 1))
    bare = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    load(save(tmp_path / "c", {"m": inner}), {"m": bare})
    assert torch.equal(inner[1].weight, bare[1].weight)
    assert torch.equal(inner[0]._orig_mod.weight, bare[0].weight)
    load(save(tmp_path / "b", {"m": bare}), {"m": nn.DataParallel(inner)})
    assert same({"m": nn.DataParallel(bare)}, {"m": torch.compile(inner)}) is None


def test_frozen_parameters_and_modes_come_back(tmp_path: Path) -> None:
    mine, theirs = Net(1), Net(2)
    mine.norm.eval()
    mine.embed.weight.requires_grad_(False)
    load(save(tmp_path / "s", {"m": mine}), {"m": theirs})
    assert not theirs.norm.training and theirs.drop.training
    assert not theirs.head.weight.requires_grad and theirs.norm.weight.requires_grad


@pytest.mark.parametrize(
    ("mine", "theirs", "says"),
    [
        (lambda: Net(1), lambda: Net(1, width=9), "state['m'].embed.weight is a tensor (10, 9)"),
        (lambda: Net(1), lambda: Net(1).bfloat16(), "of bfloat16: the checkpoint holds (10, 8)"),
        (lambda: Net(1), lambda: Net(1, tied=False), "head.weight is a separate tensor"),
        (lambda: Net(1, tied=False), lambda: Net(1), "head.weight is tied to embed.weight"),
        (lambda: nn.Linear(2, 2), lambda: nn.Linear(2, 2, bias=False), "holds bias, which it"),
        (lambda: nn.Linear(2, 2, bias=False), lambda: nn.Linear(2, 2), "it has bias, which the"),
        (lambda: nn.Linear(2, 2), lambda: {}, "is dict: the checkpoint holds a torch module"),
        (lambda: torch.ones(2), lambda: torch.ones(3), "(3,) of float32: the checkpoint holds"),
        (lambda: torch.Generator(), lambda: torch.ones(3), "holds a torch.Generator"),
    ],
)  # fmt: skip
def test_a_mismatch_is_refused_by_name(tmp_path: Path, mine: Any, theirs: Any, says: str) -> None:
    with pytest.raises(DoesNotFit) as caught:
        load(save(tmp_path / "s", {"m": mine()}), {"m": theirs()})
    assert says in str(caught.value)


def test_one_tensor_under_two_names_comes_back_as_one(tmp_path: Path) -> None:
    def build(seed: int) -> dict[str, Any]:
        model = Net(seed)
        return {"m": model, "w": model.embed.weight, "box": {"again": model.embed.weight}}

    mine, theirs = build(1), build(2)
    load(save(tmp_path / "s", mine), theirs)
    assert theirs["box"]["again"] is theirs["w"] is theirs["m"].head.weight
    apart = {**build(3), "w": nn.Parameter(torch.zeros(10, 8))}
    with pytest.raises(DoesNotFit, match="several"):
        load(tmp_path / "s", apart)


def test_generators_resume(tmp_path: Path) -> None:
    mine, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    torch.rand(3, generator=mine)
    load(save(tmp_path / "s", {"g": mine}), {"g": theirs})
    assert torch.equal(torch.rand(5, generator=mine), torch.rand(5, generator=theirs))


def test_a_machine_with_fewer_gpus_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as gpus:
        gpus.setattr(torch.cuda, "is_available", lambda: True)
        gpus.setattr(torch.cuda, "is_initialized", lambda: True)
        gpus.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.zeros(16, dtype=torch.uint8)])
        save(tmp_path / "s", {"rng": torch.random})
    from outlast.loop import snapshot, state

    saved = snapshot.read(tmp_path / "s")
    state.restore_all({"rng": torch.random}, saved.nodes, saved.blobs)
    assert "the random numbers of 1 GPUs, but this machine has 0" in capsys.readouterr().err


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> int:
        return row


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_where_training_was(tmp_path: Path, workers: int) -> None:
    def build() -> tuple[BatchSampler, Any]:
        sampler = BatchSampler(10, 3, seed=4)
        loader = torch.utils.data.DataLoader(
            Rows(), batch_sampler=sampler, num_workers=workers, multiprocessing_context=(
                "forkserver" if workers else None
            ),
        )  # fmt: skip
        return sampler, loader

    def take(sampler: BatchSampler, loader: Any, number: int) -> list[list[int]]:
        batches = zip(range(number), sampler.over(loader), strict=False)
        return [batch.tolist() for _, batch in batches]

    sampler, loader = build()
    torch.manual_seed(1)
    baseline = take(sampler, loader, 11)
    sampler, loader = build()
    first = take(sampler, loader, 5)
    save(tmp_path / "s", {"sampler": sampler})
    sampler, loader = build()
    load(tmp_path / "s", {"sampler": sampler})
    assert first + take(sampler, loader, 6) == baseline
    drawn = torch.rand(2).tolist()
    torch.manual_seed(1)
    assert torch.rand(2).tolist() == drawn  # beginning to iterate drew nothing
