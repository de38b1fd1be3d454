"""Shaped as PyTorch's own example of MNIST: two convolutions, dropout, Adadelta, StepLR, a test
after each epoch. Digits of scikit-learn in the place of MNIST."""

import argparse
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import outlast

PAUSE = float(os.environ.get("PAUSE", "0"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(torch.flatten(self.dropout1(x), 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def train_batch(model, data, target, optimizer):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(data), target)
    loss.backward()
    optimizer.step()
    return loss.item()


def test(model, loader):
    model.eval()
    loss = correct = 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--gamma", type=float, default=0.7)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16)[:, None]
    rows = TensorDataset(images, torch.from_numpy(digits.target))
    train_rows, test_rows = torch.utils.data.random_split(
        rows, [640, len(rows) - 640], torch.Generator().manual_seed(2)
    )
    sampler = outlast.BatchSampler(len(train_rows), args.batch_size, seed=1)
    loader, test_loader = DataLoader(train_rows, batch_sampler=sampler), DataLoader(test_rows, 500)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": sampler}
    total = args.epochs * sampler.batches_per_epoch
    with outlast.train({**state, "rng": torch.random}, total, checkpoint_every="3") as run:
        for step, (data, target) in zip(run.steps(), sampler.over(loader), strict=False):
            run.log(loss=train_batch(model, data, target, optimizer))
            time.sleep(PAUSE)
            if step % sampler.batches_per_epoch == 0:
                loss, accuracy = test(model, test_loader)
                run.eval(test_loss=loss, accuracy=accuracy, best="max", of="accuracy")
                scheduler.step()
        torch.save(model.state_dict(), run.result("mnist_cnn.pt"))


if __name__ == "__main__":
    main()
