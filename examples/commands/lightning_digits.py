"""Handwritten digits with Lightning: ModelCheckpoint writes, ckpt_path="last" resumes.

python lightning_digits.py --checkpoints DIR --model FILE.ckpt
"""

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        rows, labels = batch
        loss = nn.functional.cross_entropy(self.layers(rows), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    lightning.seed_everything(0)

    pixels, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits))
    checkpoints = ModelCheckpoint(args.checkpoints, save_last=True, save_top_k=1)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        callbacks=[checkpoints],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    trainer.fit(Digits(), loader, ckpt_path="last")
    trainer.save_checkpoint(args.model)
    print(f"trained to epoch {trainer.current_epoch}")


if __name__ == "__main__":
    main()
