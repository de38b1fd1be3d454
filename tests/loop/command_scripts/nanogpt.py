"""Letters in the shape of nanoGPT's train.py: ckpt.pt is written over the old one, and a resume
draws its batches from the first seed again."""

import os
import sys
import time

import torch
from torch import nn

out_dir, init_from = "out", "scratch"
max_iters, eval_interval, batch_size, block_size = 140, 10, 8, 16
for word in sys.argv[1:]:
    key, value = word.removeprefix("--").split("=", 1)
    globals()[key] = type(globals()[key])(value)

os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
data = torch.tensor([(number * number) % 27 for number in range(4000)])
model_args = dict(vocab_size=27, n_embd=16, dropout=0.1)
model = nn.Sequential(
    nn.Embedding(27, 16), nn.Dropout(0.1), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 27)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
iter_num, best_val_loss = 0, 1e9
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
print(f"begins after {iter_num}", flush=True)


def get_batch():
    at = torch.randint(len(data) - block_size - 1, (batch_size,))
    rows = torch.stack([data[i : i + block_size] for i in at])
    return rows, torch.stack([data[i + 1 : i + block_size + 1] for i in at])


first = iter_num
while True:
    if iter_num % eval_interval == 0 and iter_num > first:
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "model_args": model_args,
            "iter_num": iter_num,
            "best_val_loss": best_val_loss,
        }
        torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
        print(f"saved {iter_num}", flush=True)
        time.sleep(float(os.environ.get("PACE", "0")))
    if iter_num >= max_iters:
        break
    rows, targets = get_batch()
    loss = nn.functional.cross_entropy(model(rows).flatten(0, 1), targets.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    iter_num += 1
