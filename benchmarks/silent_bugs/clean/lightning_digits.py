"""Lightning with its own loop: validation in between, a schedule, clipping, manual seeds."""

import logging
import tempfile
import warnings

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message=".*num_workers.*")


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.body(x)))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        self.log("right", (self(images).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8),
        }


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data[:512], dtype=torch.float32) / 16
    y = torch.tensor(digits.target[:512])
    train = DataLoader(TensorDataset(x[:384], y[:384]), batch_size=48, shuffle=True)
    held_out = DataLoader(TensorDataset(x[384:], y[384:]), batch_size=64)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Digits(), train, held_out)
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})


main()
