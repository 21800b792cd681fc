"""A Lightning classifier that keeps the weights of the best validation accuracy."""

import logging
import sys
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
        self.train_accuracy = MulticlassAccuracy(num_classes=4, average="micro")
        self.val_accuracy = MulticlassAccuracy(num_classes=4, average="micro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.train_accuracy.update(logits, y)
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self):
        self.log("train_acc", self.train_accuracy.compute())
        self.train_accuracy.reset()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.val_accuracy.update(self.net(x), y)

    def on_validation_epoch_end(self):
        value = self.val_accuracy.compute()
        self.log("val_acc", value)
        self.val_accuracy.reset()
        print(f"validation accuracy {value.item():.3f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main():
    L.seed_everything(SEED, verbose=False)
    centres = torch.randn(4, 16) * 0.6
    y = torch.randint(0, 4, (480,))
    x = centres[y] + torch.randn(480, 16)
    train = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=32, shuffle=True)
    val = DataLoader(TensorDataset(x[320:], y[320:]), batch_size=32)
    with tempfile.TemporaryDirectory() as out:
        best = ModelCheckpoint(out, monitor="val_acc", mode="max")
        trainer = L.Trainer(
            max_steps=STEPS,
            callbacks=[best],
            logger=False,
            accelerator="cpu",
            devices=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(Classifier(), train, val)


if __name__ == "__main__":
    main()
