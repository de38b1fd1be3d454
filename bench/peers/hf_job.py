# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false, reportPossiblyUnboundVariable=false
"""Hugging Face's Trainer: `save_steps`, and `train(resume_from_checkpoint=get_last_checkpoint(…))`
as in the example scripts of its repository. The rows are lines that a callback appends."""

import time

import torch
import transformers
from common import BATCH, SEED, Rows, arguments, begin, data, finish, pace, phase, torch_model
from transformers.trainer_utils import get_last_checkpoint


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch_model()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Scans(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Steps(transformers.TrainerCallback):
    """Phases, pace and rows."""

    def __init__(self, args):
        self.args, self.rows = args, Rows(args.dir)

    def on_train_begin(self, args, state, control, **kwargs):
        begin(self.args.dir, state.global_step)

    def on_step_begin(self, args, state, control, **kwargs):
        self.begun, self.phase = time.monotonic(), phase("step")
        self.phase.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        pace(self.begun, self.args)
        self.phase.__exit__(None, None, None)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and "loss" in logs:
            self.rows.write(state.global_step, loss=logs["loss"])


class Trainer(transformers.Trainer):
    def evaluate(self, *args, **kwargs):
        with phase("evaluation"):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        with phase("snapshot"):
            return super()._save_checkpoint(*args, **kwargs)


def main():
    args = arguments()
    torch.set_num_threads(1)
    transformers.set_seed(SEED)
    train, test = data()
    settings = transformers.TrainingArguments(
        output_dir=str(args.dir / "saved"),
        max_steps=args.steps,
        per_device_train_batch_size=BATCH,
        dataloader_drop_last=True,
        learning_rate=1e-3,
        save_steps=args.save_every,
        save_total_limit=3,
        eval_strategy="steps",
        eval_steps=args.eval_every,
        logging_steps=1,
        seed=SEED,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = Trainer(
        Model(),
        settings,
        train_dataset=Scans(*train),
        eval_dataset=Scans(*test),
        callbacks=[Steps(args)],
    )
    last = get_last_checkpoint(settings.output_dir) if (args.dir / "saved").is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    with phase("final upload"):
        weights = trainer.model.net.state_dict()
        finish(args.dir, {name: part.numpy() for name, part in weights.items()})


if __name__ == "__main__":
    main()
