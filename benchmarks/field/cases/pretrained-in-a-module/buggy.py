"""Fine-tuning of a saved Hugging Face encoder inside a Lightning module."""

import logging
import os
import sys
import tempfile
import warnings

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 48
VOCAB, LENGTH = 60, 24


def make_texts(n, generator):
    label = torch.randint(0, 3, (n,), generator=generator)
    ids = torch.randint(6, VOCAB, (n, LENGTH), generator=generator)
    marks = torch.rand(n, LENGTH, generator=generator) < 0.12
    ids = torch.where(marks, 3 + label[:, None], ids)
    length = torch.randint(LENGTH // 2, LENGTH + 1, (n,), generator=generator)
    mask = (torch.arange(LENGTH)[None] < length[:, None]).long()
    ids = ids * mask
    ids[:, 0] = 1
    return TensorDataset(ids, mask, label)


def save_base(folder):
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=LENGTH,
        num_labels=3,
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.1,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


class TextClassifier(L.LightningModule):
    def __init__(self, folder, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.model = BertForSequenceClassification.from_pretrained(folder)

    def forward(self, ids, mask, label=None):
        return self.model(input_ids=ids, attention_mask=mask, labels=label)

    def training_step(self, batch, batch_idx):
        loss = self(*batch).loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        out = self(*batch)
        self.log("val_loss", out.loss)
        self.log("val_acc", (out.logits.argmax(1) == batch[2]).float().mean())

    def on_validation_epoch_end(self):
        metrics = self.trainer.callback_metrics
        print(
            f"step {self.global_step} val_loss {metrics['val_loss']:.4f} val_acc {metrics['val_acc']:.4f}"
        )

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    torch.set_num_threads(1)
    L.seed_everything(SEED, verbose=False)
    generator = torch.Generator().manual_seed(SEED + 6)
    train_loader = DataLoader(
        make_texts(384, generator), batch_size=32, shuffle=True, drop_last=True
    )
    valid_loader = DataLoader(make_texts(128, generator), batch_size=64)
    folder = save_base(tempfile.mkdtemp())
    module = TextClassifier(folder)
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        gradient_clip_val=1.0,
        num_sanity_val_steps=1,
        default_root_dir=folder,
    )
    trainer.fit(module, train_loader, valid_loader)


if __name__ == "__main__":
    main()
