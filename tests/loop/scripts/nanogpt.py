"""Shaped as nanoGPT's train.py: batches at random places of a memory-mapped text, gradients that
accumulate, a learning rate that the script computes, AdamW with decay, the best model."""

import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import outlast

BLOCK, BATCH, ACCUMULATE, TOTAL, EVAL_EVERY = 16, 4, 2, 60, 15
PAUSE = float(os.environ.get("PAUSE", "0"))
torch.set_num_threads(1)
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1))
        self.out = nn.Linear(4 * width, width)
        self.register_buffer("bias", torch.tril(torch.ones(BLOCK, BLOCK)), persistent=False)

    def forward(self, x):
        q, k, v = self.attn(self.ln1(x)).split(x.shape[-1], dim=2)
        weights = (q @ k.transpose(1, 2)) / math.sqrt(k.shape[-1])
        weights = weights.masked_fill(self.bias == 0, float("-inf")).softmax(-1)
        self.weights = weights  # kept to be looked at
        x = x + self.proj(weights @ v)
        return x + self.out(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    def __init__(self, vocab, width=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(BLOCK, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.head.weight  # tied

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(BLOCK))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


text = (Path(__file__).read_text() * 4).encode("ascii")
chars = sorted(set(text))
tokens = np.array([chars.index(byte) for byte in text], np.uint16)
folder = tempfile.TemporaryDirectory()
tokens.tofile(Path(folder.name, "tokens.bin"))
data = np.memmap(Path(folder.name, "tokens.bin"), np.uint16, "r")
halves = {"train": data[: len(data) // 2], "val": data[len(data) // 2 :]}


def get_batch(split):
    rows = halves[split]
    starts = torch.randint(len(rows) - BLOCK, (BATCH,))
    pick = [torch.from_numpy(rows[i : i + BLOCK + 1].astype(np.int64)) for i in starts]
    both = torch.stack(pick)
    return both[:, :-1], both[:, 1:]


def get_lr(step):
    if step < 10:
        return 1e-3 * (step + 1) / 11
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * step / TOTAL)) * 9e-4


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    found = {
        split: torch.tensor([model(*get_batch(split)).item() for _ in range(3)]).mean().item()
        for split in halves
    }
    model.train()
    return found


model = GPT(len(chars))
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
best = {"val": float("inf"), "model": None, "step": 0}
state = {"model": model, "optimizer": optimizer, "scaler": scaler, "best": best}
with outlast.train({**state, "rng": torch.random}, TOTAL, checkpoint_every="3") as run:
    for step in run.steps():
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        for _ in range(ACCUMULATE):
            loss = model(*get_batch("train")) / ACCUMULATE
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        run.log(loss=loss.item() * ACCUMULATE, lr=get_lr(step))
        time.sleep(PAUSE)
        if step % EVAL_EVERY == 0:
            losses = estimate_loss(model)
            run.eval(**losses)
            if losses["val"] < best["val"]:
                copied = {name: item.clone() for name, item in model.state_dict().items()}
                best.update(val=losses["val"], model=copied, step=step)
    torch.save(best, run.result("ckpt.pt"))
