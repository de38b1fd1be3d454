"""Digits in the shape of pytorch/examples' mnist: no checkpoint, the model beside the script."""

import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--save-model", action="store_true")
args = parser.parse_args()
torch.manual_seed(args.seed)
pixels, digits = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits))
loader = DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.25), nn.Linear(32, 10))
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
print("begins after 0", flush=True)
for epoch in range(1, args.epochs + 1):
    model.train()
    for rows, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(f"Train Epoch: {epoch} Loss: {loss.item():.6f}", flush=True)
    time.sleep(float(os.environ.get("PACE", "0")))
if args.save_model:
    torch.save(model.state_dict(), "mnist_cnn.pt")
