"""Halts of jobs with several ranks: one rank alone shows the bug, and no rank writes after it."""

from __future__ import annotations

import re

import pytest

from benchmarks import harness

# On rank 1 the optimizer lacks the body, which step 2 of it shows.
LIGHTNING = """
import sys
from pathlib import Path
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from traincheck.integrations.lightning import TraincheckCallback

class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.mse_loss(self.head(torch.relu(self.body(x))), y)

    def configure_optimizers(self):
        is_broken = sys.argv[1] == "broken" and self.global_rank == 1
        return torch.optim.Adam((self.head if is_broken else self).parameters(), lr=0.01)

torch.manual_seed(0)
callback = TraincheckCallback(halt=True, ignore=["TC4"])
saver = ModelCheckpoint("saved", "{step}", every_n_train_steps=1, save_top_k=-1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[callback, saver],
)
trainer.fit(Lit(), DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), 2))
Path(f"rank-{trainer.global_rank}").write_text(str(trainer.global_step))
"""

TRANSFORMERS = """
import os, sys
from pathlib import Path
import torch, transformers
from traincheck.integrations.transformers import TraincheckCallback

torch.manual_seed(0)
config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
model = transformers.GPT2LMHeadModel(config)
rank = int(os.environ["RANK"])
is_broken = sys.argv[1] == "broken" and rank == 1
trained = model.transformer.wte if is_broken else model
given = transformers.TrainingArguments(
    "saved", num_train_epochs=1, per_device_train_batch_size=2, report_to=[], use_cpu=True,
    disable_tqdm=True, save_strategy="steps", save_steps=1, ddp_find_unused_parameters=False,
)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (24, 8))]
trainer = transformers.Trainer(
    model, given, train_dataset=rows, callbacks=[TraincheckCallback(halt=True, ignore=["TC4"])],
    optimizers=(torch.optim.AdamW(trained.parameters(), lr=0.01), None),
)
trainer.train()
Path(f"rank-{rank}").write_text(str(trainer.state.global_step))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "how"),
    [(LIGHTNING, "broken"), (LIGHTNING, "healthy"), (TRANSFORMERS, "broken")],
    ids=["lightning", "lightning, healthy", "transformers"],
)
def test_ranks_halt_together(tmp_path, script, how) -> None:
    pytest.importorskip("lightning" if "lightning" in script else "transformers")
    (tmp_path / "train.py").write_text(script)
    done = harness.run(
        [harness.command("torchrun"), "--nproc-per-node", "2", "--standalone", "train.py", how],
        cwd=tmp_path,
        env={"HF_HUB_OFFLINE": 1},
    )
    assert done.returncode == 0, done.stderr
    last = 2 if how == "broken" else 6
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == [str(last)] * 2
    saved = {int(re.split("[=-]", path.stem)[-1]) for path in (tmp_path / "saved").iterdir()}
    assert saved == set(range(1, 2 if how == "broken" else 7))
