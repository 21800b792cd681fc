"""Train a convolutional network on the digits of scikit-learn, with Lightning.

The loss falls, and the learning rate never leaves its warm-up: see README.md.
"""

from __future__ import annotations

import logging

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class DigitsModule(lightning.LightningModule):
    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 10),
        )  # fmt: skip

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self.net(images)
        self.log("loss", F.cross_entropy(logits, labels))
        self.log("accuracy", (logits.argmax(dim=1) == labels).float().mean())

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            metrics = self.trainer.callback_metrics
            print(
                f"epoch {self.current_epoch}: loss {metrics['loss']:.3f}"
                f" accuracy {metrics['accuracy']:.3f}"
            )

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.0)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
    train, valid = random_split(TensorDataset(x, torch.tensor(labels)), [0.8, 0.2])
    trainer = lightning.Trainer(
        max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(
        DigitsModule(),
        DataLoader(train, batch_size=64, shuffle=True),
        DataLoader(valid, batch_size=256),
    )


if __name__ == "__main__":
    main()
