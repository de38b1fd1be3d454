"""How public frameworks write their checkpoint folders, and what each of them resumes from.

Each is written file by file as the framework does: in the same order, in place, beside and renamed,
or into a temporary folder. A file says which save it is of, and whether it is whole.
"""

import contextlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


class Torn(Exception):
    """A framework would fail on this folder, or resume from a mix of saves."""


Steps = Iterator[None]
"""A pause after each change of the folder."""

Save = Callable[["Folder", int], Steps]
Resume = Callable[[Path], int]


class Folder:
    """The folder as a framework writes it, and which of its files are open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.open: set[str] = set()

    def write(self, name: str, number: int) -> Steps:
        """In place, in two pieces."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content(number)
        self.open.add(str(path))
        with path.open("w") as file:
            yield
            file.write(text[: len(text) // 2])
            file.flush()
            yield
            file.write(text[len(text) // 2 :])
        self.open.discard(str(path))
        yield

    def replace(self, name: str, number: int, temporary: str = "{}.tmp") -> Steps:
        """Beside it, and renamed."""
        beside = temporary.format(name)
        yield from self.write(beside, number)
        os.replace(self.root / beside, self.root / name)
        yield

    def append(self, name: str, line: str) -> None:
        with (self.root / name).open("a") as file:
            file.write(f"{line}\n")

    def remove(self, name: str) -> Steps:
        """A file, or a folder, file by file."""
        path = self.root / name
        if path.is_dir():
            for file in sorted(path.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
                yield
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        yield


def content(number: int) -> str:
    """Of a whole file of this save; the size differs, as it often does."""
    return f"{number}\n" * (300 + number % 3) + "end\n"


def read(path: Path) -> int:
    """The number of the file's save. Raises Torn if the file is missing or incomplete."""
    try:
        text = path.read_text()
    except OSError:
        raise Torn(f"{path.name} is missing") from None
    number = text.partition("\n")[0]
    if not number.isdigit() or text != content(int(number)):
        raise Torn(f"{path.name} is not whole")
    return int(number)


def all_of(*paths: Path) -> int:
    numbers = {path.name: read(path) for path in paths}
    if len(set(numbers.values())) != 1:
        raise Torn(f"a mix: {numbers}")
    return next(iter(numbers.values()))


def numbered(root: Path, start: str) -> list[tuple[int, Path]]:
    """The files with this prefix, by their number."""
    found = []
    for path in root.glob(f"{start}*"):
        digits = path.name.removeprefix(start).split(".")[0].split("_")[0]
        if digits.isdigit():
            found.append((int(digits), path))
    return sorted(found)


# -- One file


def nanogpt(folder: Folder, number: int) -> Steps:
    """``torch.save`` over the old file, at each evaluation: train.py at e2221318e607."""
    yield from folder.write("ckpt.pt", number)


def nanogpt_resume(root: Path) -> int:
    return read(root / "ckpt.pt") if (root / "ckpt.pt").exists() else 0


def renamed(folder: Folder, number: int) -> Steps:
    yield from folder.replace("last.pt", number)


def renamed_resume(root: Path) -> int:
    return read(root / "last.pt") if (root / "last.pt").exists() else 0


def renamed_by_any_name(folder: Folder, number: int) -> Steps:
    """A temporary name beside it, without a known suffix."""
    yield from folder.replace("last.pt", number, "new-{}")


def torch_numbered(folder: Folder, number: int) -> Steps:
    yield from folder.write(f"epoch_{number}.pth", number)


def torch_numbered_resume(root: Path) -> int:
    found = numbered(root, "epoch_")
    return read(found[-1][1]) if found else 0


def torch_newest_by_ctime(root: Path) -> int:
    """``max(glob(...), key=os.path.getctime)``."""
    found = list(root.glob("epoch_*.pth"))
    newest = max(found, key=os.path.getctime, default=None)
    if newest is None:
        return 0
    if newest != numbered(root, "epoch_")[-1][1]:
        raise Torn(f"{newest.name} is the newest by its change time")
    return read(newest)


# -- Separate folders


TRAINER = (
    *("config.json", "generation_config.json", "model.safetensors", "training_args.bin"),
    *("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"),
)


def trainer(folder: Folder, number: int) -> Steps:
    """transformers.Trainer with save_total_limit=2."""
    for name in TRAINER:
        yield from folder.write(f"checkpoint-{number * 500}/{name}", number)
    for _, old in numbered(folder.root, "checkpoint-")[:-2]:
        yield from folder.remove(old.name)


def trainer_resume(root: Path) -> int:
    """``get_last_checkpoint``."""
    found = numbered(root, "checkpoint-")
    return all_of(*(found[-1][1] / name for name in TRAINER)) if found else 0


ACCELERATE = ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl")


def accelerate(folder: Folder, number: int) -> Steps:
    for name in ACCELERATE:
        yield from folder.write(f"epoch_{number}/{name}", number)


def accelerate_resume(root: Path) -> int:
    """As its examples do: the last by ``os.path.getctime``."""
    folders = [path for path in root.iterdir() if path.is_dir()]
    if not folders:
        return 0
    newest = max(folders, key=os.path.getctime)
    if newest != numbered(root, "epoch_")[-1][1]:
        raise Torn(f"{newest.name} is the newest by its change time")
    return all_of(*(newest / name for name in ACCELERATE))


def deepspeed(folder: Folder, number: int) -> Steps:
    names = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    for name in names:
        yield from folder.write(f"global_step{number}/{name}", number)
    yield from folder.write("zero_to_fp32.py", 1)
    yield from folder.write("latest", number)


def deepspeed_resume(root: Path) -> int:
    if not (root / "latest").exists():
        return 0
    step = root / f"global_step{read(root / 'latest')}"
    return all_of(*step.iterdir()) if len(list(step.glob("*"))) == 2 else _lacks(step)


RANKS = 4


def ranks(folder: Folder, number: int) -> Steps:
    """One file a rank, over the old ones; no file says how many there are."""
    for rank in range(RANKS):
        yield from folder.write(f"state_rank{rank}.pt", number)


def ranks_resume(root: Path) -> int:
    if not list(root.iterdir()):
        return 0
    return all_of(*(root / f"state_rank{rank}.pt" for rank in range(RANKS)))


def rank_folders(folder: Folder, number: int) -> Steps:
    for rank in range(RANKS):
        yield from folder.write(f"step{number}/rank_{rank}.pt", number)


def rank_folders_resume(root: Path) -> int:
    found = numbered(root, "step")
    if not found:
        return 0
    return all_of(*(found[-1][1] / f"rank_{rank}.pt" for rank in range(RANKS)))


SHARDS = (
    *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
    "model.safetensors.index.json",
)


def shards(folder: Folder, number: int) -> Steps:
    """save_pretrained with max_shard_size, over the old files."""
    for name in SHARDS:
        yield from folder.write(f"last/{name}", number)


def shards_resume(root: Path) -> int:
    if not (root / "last").exists():
        return 0
    return all_of(*(root / "last" / name for name in SHARDS))


def megatron(folder: Folder, number: int) -> Steps:
    yield from folder.write(f"iter_{number:07d}/mp_rank_00/model_optim_rng.pt", number)
    yield from folder.write("latest_checkpointed_iteration.txt", number)


def megatron_resume(root: Path) -> int:
    tracker = root / "latest_checkpointed_iteration.txt"
    if not tracker.exists():
        return 0
    return all_of(tracker, root / f"iter_{read(tracker):07d}/mp_rank_00/model_optim_rng.pt")


def dcp(folder: Folder, number: int) -> Steps:
    """torch.distributed.checkpoint of two ranks, as torchtitan lays it out."""
    for name in ("__0_0.distcp", "__1_0.distcp"):
        yield from folder.write(f"step-{number}/{name}", number)
    yield from folder.replace(f"step-{number}/.metadata", number)


def dcp_resume(root: Path) -> int:
    whole = [at for _, at in numbered(root, "step-") if (at / ".metadata").exists()]
    if not whole:
        return 0
    return all_of(*(whole[-1] / name for name in ("__0_0.distcp", "__1_0.distcp", ".metadata")))


ORBAX = ("default/manifest.ocdbt", "default/_METADATA", "_CHECKPOINT_METADATA")


def orbax(folder: Folder, number: int) -> Steps:
    """CheckpointManager with max_to_keep=2: into a temporary folder, which is renamed."""
    beside = f"{number}.orbax-checkpoint-tmp"
    for name in (f"default/d/{zlib.crc32(str(number).encode()):08x}", *ORBAX):
        yield from folder.write(f"{beside}/{name}", number)
    os.replace(folder.root / beside, folder.root / str(number))
    yield
    for _, old in numbered(folder.root, "")[:-2]:
        yield from folder.remove(old.name)


def orbax_resume(root: Path) -> int:
    found = [(number, at) for number, at in numbered(root, "") if at.name.isdigit()]
    if not found:
        return 0
    data = list((found[-1][1] / "default/d").iterdir())
    return all_of(*(found[-1][1] / name for name in ORBAX), *data)


# -- Files and a pointer


def detectron2(folder: Folder, number: int) -> Steps:
    """PeriodicCheckpointer(max_to_keep=2) of fvcore at 002706f799d8: the model, what
    ``last_checkpoint`` names, the oldest away; the evaluation comes after it."""
    if number == 1:
        yield from folder.write("config.yaml", 1)
    folder.append("metrics.json", f'{{"iteration": {number}}}')
    folder.append("log.txt", f"iter: {number}")
    yield from folder.write(f"model_{number:07d}.pth", number)
    yield from folder.write("last_checkpoint", number)
    for _, old in numbered(folder.root, "model_")[:-2]:
        yield from folder.remove(old.name)
    yield from folder.write("inference/coco_instances_results.json", number)
    yield from folder.write("inference/instances_predictions.pth", number)


def detectron2_resume(root: Path) -> int:
    if not (root / "last_checkpoint").exists():
        return 0
    return all_of(
        root / "last_checkpoint", root / f"model_{read(root / 'last_checkpoint'):07d}.pth"
    )


def tensorflow(folder: Folder, number: int) -> Steps:
    """tf.train.CheckpointManager with max_to_keep=2."""
    name = f"ckpt-{number}"
    yield from folder.replace(f"{name}.data-00000-of-00001", number, "{}.tempstate123")
    yield from folder.replace(f"{name}.index", number, "{}.tempstate123")
    yield from folder.replace("checkpoint", number, "{}.tmp1a2b")
    for old in range(1, number - 1):
        for path in folder.root.glob(f"ckpt-{old}.*"):
            yield from folder.remove(path.name)


def tensorflow_resume(root: Path) -> int:
    if not (root / "checkpoint").exists():
        return 0
    start = root / f"ckpt-{read(root / 'checkpoint')}"
    return all_of(Path(f"{start}.data-00000-of-00001"), Path(f"{start}.index"))


def linked(folder: Folder, number: int) -> Steps:
    """A link that each save recreates."""
    yield from folder.write(f"step-{number}.pt", number)
    with contextlib.suppress(FileNotFoundError):
        (folder.root / "latest.pt").unlink()
    yield
    (folder.root / "latest.pt").symlink_to(f"step-{number}.pt")
    yield


def linked_resume(root: Path) -> int:
    if not (root / "latest.pt").is_symlink():
        if numbered(root, "step-"):
            raise Torn("latest.pt is missing")
        return 0
    return read(root / "latest.pt")


# -- Several files that are written again


def several(*names: str) -> tuple[Save, Resume]:
    def save(folder: Folder, number: int) -> Steps:
        for name in names:
            yield from folder.write(name, number)

    def resume(root: Path) -> int:
        there = [name for name in names if (root / name).exists()]
        return all_of(*(root / name for name in names)) if there else 0

    return save, resume


keras, keras_resume = several("latest.weights.h5", "training_metadata.json")
marian, marian_resume = several(
    *("model.npz", "model.npz.yml", "model.npz.optimizer.npz", "model.npz.progress.yml")
)
paddle, paddle_resume = several("latest.pdparams", "latest.pdopt", "latest.states")
spacy, spacy_resume = several(
    *("model-last/config.cfg", "model-last/meta.json", "model-last/tok2vec/model"),
    *("model-last/vocab/strings.json", "model-last/ner/model"),
)


def lightning(folder: Folder, number: int) -> Steps:
    """ModelCheckpoint(save_top_k=1, save_last=True): the new best, the old one away, the last."""
    names = sorted(path.name for path in folder.root.glob("epoch=*"))
    if number % 2:
        yield from folder.write(f"epoch={number}-step={number * 10}.ckpt", number)
        for name in names:
            yield from folder.remove(name)
    yield from folder.write("last.ckpt", number)


def lightning_resume(root: Path) -> int:
    """ckpt_path="last"; the best checkpoint that it names must exist, too."""
    if not (root / "last.ckpt").exists():
        return 0
    number = read(root / "last.ckpt")
    best = number if number % 2 else number - 1
    read(root / f"epoch={best}-step={best * 10}.ckpt")
    return number


def ultralytics(folder: Folder, number: int) -> Steps:
    """BaseTrainer.save_model at 00016300105e, with save_period=2: the row of the CSV first, then
    the last, the best and the numbered one, each over the old one by ``write_bytes``."""
    (folder.root / "weights").mkdir(exist_ok=True)
    if number == 1:
        yield from folder.write("args.yaml", 1)
    folder.append("results.csv", f"{number},0.5")
    yield
    yield from folder.write("weights/last.pt", number)
    if number % 3 == 1:
        yield from folder.write("weights/best.pt", number)
    if number % 2 == 0:
        yield from folder.write(f"weights/epoch{number}.pt", number)


def ultralytics_resume(root: Path) -> int:
    if not (root / "weights/last.pt").exists():
        return 0
    number = read(root / "weights/last.pt")
    best = read(root / "weights/best.pt")
    if best != number - (number - 1) % 3:
        raise Torn(f"best.pt is of {best}, last.pt of {number}")
    return number


def fairseq(folder: Folder, number: int) -> Steps:
    """The epoch's file, copied to the others; the oldest away."""
    for name in (f"checkpoint{number}.pt", "checkpoint_best.pt", "checkpoint_last.pt"):
        yield from folder.write(name, number)
    for _, old in numbered(folder.root, "checkpoint")[:-2]:
        yield from folder.remove(old.name)


def fairseq_resume(root: Path) -> int:
    if not (root / "checkpoint_last.pt").exists():
        return 0
    return all_of(root / "checkpoint_last.pt", root / "checkpoint_best.pt")


def timm(folder: Folder, number: int) -> Steps:
    """A temporary file, renamed to the last; hard links to it, and a CSV that grows."""
    yield from folder.replace("last.pth.tar", number, "tmp.pth.tar")
    os.link(folder.root / "last.pth.tar", folder.root / f"checkpoint-{number}.pth.tar")
    yield
    if number % 2:
        (folder.root / "model_best.pth.tar").unlink(missing_ok=True)
        os.link(folder.root / "last.pth.tar", folder.root / "model_best.pth.tar")
        yield
    for _, old in numbered(folder.root, "checkpoint-")[:-3]:
        yield from folder.remove(old.name)
    folder.append("summary.csv", f"{number},0.5")
    yield


def timm_resume(root: Path) -> int:
    if not (root / "last.pth.tar").exists():
        return 0
    number = all_of(
        root / "last.pth.tar", root / f"checkpoint-{read(root / 'last.pth.tar')}.pth.tar"
    )
    best = read(root / "model_best.pth.tar")
    if best != (number if number % 2 else number - 1):
        raise Torn(f"model_best is of {best}, last of {number}")
    return number


BASELINES = ("rl_model_{}_steps.zip", "rl_model_replay_buffer_{}_steps.pkl")


def baselines(folder: Folder, number: int) -> Steps:
    """stable-baselines3's CheckpointCallback with a replay buffer."""
    for name in BASELINES:
        yield from folder.write(name.format(number * 1000), number)


def baselines_resume(root: Path) -> int:
    found = numbered(root, "rl_model_")
    if not found:
        return 0
    return all_of(*(root / name.format(found[-1][0]) for name in BASELINES))


def xgboost(folder: Folder, number: int) -> Steps:
    """TrainingCheckPoint, of every 100 rounds."""
    yield from folder.write(f"model_{number * 100}.ubj", number)


def xgboost_resume(root: Path) -> int:
    found = numbered(root, "model_")
    return read(found[-1][1]) if found else 0


def _lacks(folder: Path) -> int:
    raise Torn(f"{folder.name} lacks files")


@dataclass(frozen=True)
class Layout:
    name: str
    save: Save
    resume: Resume
    varies: bool = False
    """Whether not each save writes the same files, so that one that lacks a file is not known."""


LAYOUTS = [
    Layout("nanogpt", nanogpt, nanogpt_resume),
    Layout("renamed", renamed, renamed_resume),
    Layout("renamed by any name", renamed_by_any_name, renamed_resume),
    Layout("numbered", torch_numbered, torch_numbered_resume),
    Layout("numbered by ctime", torch_numbered, torch_newest_by_ctime),
    Layout("transformers", trainer, trainer_resume),
    Layout("accelerate", accelerate, accelerate_resume),
    Layout("deepspeed", deepspeed, deepspeed_resume),
    Layout("ranks", ranks, ranks_resume),
    Layout("rank folders", rank_folders, rank_folders_resume),
    Layout("shards", shards, shards_resume),
    Layout("megatron", megatron, megatron_resume),
    Layout("dcp", dcp, dcp_resume),
    Layout("orbax", orbax, orbax_resume),
    Layout("detectron2", detectron2, detectron2_resume),
    Layout("tensorflow", tensorflow, tensorflow_resume),
    Layout("linked", linked, linked_resume),
    Layout("keras", keras, keras_resume),
    Layout("marian", marian, marian_resume, varies=True),
    Layout("paddle", paddle, paddle_resume),
    Layout("spacy", spacy, spacy_resume),
    Layout("lightning", lightning, lightning_resume, varies=True),
    Layout("ultralytics", ultralytics, ultralytics_resume, varies=True),
    Layout("fairseq", fairseq, fairseq_resume),
    Layout("timm", timm, timm_resume, varies=True),
    Layout("stable-baselines3", baselines, baselines_resume),
    Layout("xgboost", xgboost, xgboost_resume),
]


def empty(root: Path) -> None:
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
