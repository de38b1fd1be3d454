"""A small GPT-2, made of its configuration, in the shape of transformers' run_clm.py."""

import argparse
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--model_dir", required=True)
parser.add_argument("--num_train_epochs", type=float, default=14)
args = parser.parse_args()

last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
if last is None and os.path.isdir(args.output_dir) and os.listdir(args.output_dir):
    raise ValueError(f"Output directory ({args.output_dir}) already exists and is not empty.")
torch.manual_seed(0)
rows = [(torch.arange(12) * number + number * number) % 50 for number in range(24)]
data = [{"input_ids": row, "labels": row} for row in rows]
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=12, n_embd=16, n_layer=1, n_head=2))


class Pace(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        time.sleep(float(os.environ.get("PACE", "0")))


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=args.output_dir,
        num_train_epochs=args.num_train_epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=7,
    ),
    train_dataset=data,
    callbacks=[Pace()],
)
print(f"begins after {last.rpartition('-')[2] if last else 0}", flush=True)
trainer.train(resume_from_checkpoint=last)
trainer.save_model(args.model_dir)
