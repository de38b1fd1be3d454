"""Digits with Lightning as its guides write it: the best two, the last, and a CSV of metrics."""

import argparse
import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--default_root_dir", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--max_epochs", type=int, default=14)
args = parser.parse_args()


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]


class Pace(Callback):
    def on_train_epoch_start(self, trainer, module):
        time.sleep(float(os.environ.get("PACE", "0")))


lightning.seed_everything(0)
pixels, digits = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits))
train, held_out = (
    torch.utils.data.Subset(data, range(1500)),
    torch.utils.data.Subset(data, range(1500, 1797)),
)
last = os.path.join(args.default_root_dir, "checkpoints", "last.ckpt")
trainer = lightning.Trainer(
    max_epochs=args.max_epochs,
    default_root_dir=args.default_root_dir,
    logger=CSVLogger(args.default_root_dir, name="logs"),
    callbacks=[
        ModelCheckpoint(
            os.path.join(args.default_root_dir, "checkpoints"),
            monitor="val_loss",
            save_top_k=2,
            save_last=True,
        ),
        Pace(),
    ],
    accelerator="cpu",
    enable_progress_bar=False,
)
print(f"begins after {last if os.path.exists(last) else 0}", flush=True)
trainer.fit(
    Digits(),
    DataLoader(train, batch_size=100),
    DataLoader(held_out, batch_size=100),
    ckpt_path=last if os.path.exists(last) else None,
)
torch.save(trainer.lightning_module.state_dict(), args.model)
