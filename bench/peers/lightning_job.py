# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""Lightning: `ModelCheckpoint(every_n_train_steps, save_last)`, `CSVLogger`, and
`fit(ckpt_path="last")`, as its documentation shows."""

import time
import warnings

import lightning
import torch
from common import SEED, arguments, begin, data, finish, pace, phase, torch_model
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

warnings.filterwarnings("ignore")


class Module(lightning.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.args, self.net, self.began = args, torch_model(), False

    def training_step(self, batch, index):
        if not self.began:
            self.began = True
            begin(self.args.dir, self.global_step)
        begun = time.monotonic()
        with phase("step"):
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, on_step=True)
            pace(begun, self.args)
        return loss

    def validation_step(self, batch, index):
        with phase("evaluation"):
            found = self.net(batch[0]).argmax(1)
            self.log("accuracy", (found == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Saving(ModelCheckpoint):
    def _save_checkpoint(self, trainer, filepath):
        with phase("snapshot"):
            super()._save_checkpoint(trainer, filepath)


def main():
    args = arguments()
    lightning.seed_everything(SEED, verbose=False)
    train, test = [
        torch.utils.data.TensorDataset(*[torch.from_numpy(part) for part in pair])
        for pair in data()
    ]
    saving = Saving(
        dirpath=args.dir / "saved",
        every_n_train_steps=args.save_every,
        save_last=True,
        save_top_k=1,
    )
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        logger=CSVLogger(args.dir, name="rows"),
        log_every_n_steps=1,
        val_check_interval=args.eval_every,
        check_val_every_n_epoch=None,
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.dir,
    )
    module = Module(args)
    trainer.fit(
        module,
        torch.utils.data.DataLoader(train, 64, shuffle=True, drop_last=True),
        torch.utils.data.DataLoader(test, 360),
        ckpt_path="last",
    )
    if not module.began:  # the last checkpoint is that of the last step
        begin(args.dir, trainer.global_step)
    with phase("final upload"):
        finish(args.dir, {name: part.numpy() for name, part in module.net.state_dict().items()})


if __name__ == "__main__":
    main()
