"""Lightning module with averaged weights from a later step on; best checkpoint by validation accuracy."""

import logging
import sys
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, WeightAveraging
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 64


class Averaging(WeightAveraging):
    def __init__(self, decay, start):
        super().__init__(multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.start = start

    def should_update(self, step_idx=None, epoch_idx=None):
        return step_idx is not None and step_idx >= self.start


class Retriever(L.LightningModule):
    def __init__(self, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(64, 96), nn.LayerNorm(96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 10)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), prog_bar=True)

    def on_validation_epoch_end(self):
        metrics = self.trainer.callback_metrics
        print(
            f"step {self.global_step} val_loss {metrics['val_loss']:.4f} val_acc {metrics['val_acc']:.4f}"
        )

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    torch.set_num_threads(1)
    L.seed_everything(SEED, verbose=False)
    data = load_digits()
    x, y = torch.tensor(data.data / 16.0, dtype=torch.float32), torch.tensor(data.target)
    order = torch.randperm(len(x))
    train = TensorDataset(x[order[:1400]], y[order[:1400]])
    valid = TensorDataset(x[order[1400:]], y[order[1400:]])
    train_loader = DataLoader(train, batch_size=48, shuffle=True, drop_last=True)
    valid_loader = DataLoader(valid, batch_size=128)
    folder = tempfile.mkdtemp()
    best = ModelCheckpoint(folder, monitor="val_acc", mode="max", save_top_k=1)
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=8,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=[Averaging(0.9, start=40), best],
        default_root_dir=folder,
    )
    trainer.fit(Retriever(), train_loader, valid_loader)
    print(f"best {best.best_model_score:.4f}")


if __name__ == "__main__":
    main()
