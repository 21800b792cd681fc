"""Loops of Transformers, Accelerate and Lightning: same training, steps and names as by hand."""

from __future__ import annotations

import pytest

from benchmarks import harness
from tests.collect.recording import read_folder
from traincheck.schema.torch_api import Families

DIGEST = """

def show(model):
    import hashlib
    import torch
    text = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("DIGEST", hashlib.sha256(text).hexdigest(), torch.rand(1).item(), flush=True)

"""
TRANSFORMERS = """
import sys, tempfile, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
model = GPT2LMHeadModel(config)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (32, 8))]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, eval_strategy="steps",
        eval_steps=2, logging_strategy="no", max_grad_norm=1.0, warmup_steps=1,
        dataloader_num_workers=0,
    )
    Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4]).train()
show(model)
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), 2, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
show(accelerator.unwrap_model(model))
"""
LIGHTNING = """
import torch, lightning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, index):
        self.training_step(batch, index)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

lightning.seed_everything(0, verbose=False)
loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), 4, shuffle=True)
model = Lit()
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
)
trainer.fit(model, loader, loader)
show(model)
"""
CASES = {
    "transformers": (TRANSFORMERS, "GPT2LMHeadModel.transformer.h.0.attn.c_attn.weight", 2),
    "accelerate": (ACCELERATE, "Net.body.weight", 2),
    "lightning": (LIGHTNING, "Lit.net.0.weight", 1),
}
OFFLINE = {"HF_HUB_OFFLINE": 1, "TRANSFORMERS_OFFLINE": 1, "PYTHONWARNINGS": "ignore"}


def digest(done):
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("DIGEST")]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_loop_of_a_framework(tmp_path, name):
    code, parameter, microsteps = CASES[name]
    pytest.importorskip(name)
    script = tmp_path / f"with_{name}.py"
    script.write_text(DIGEST + code)
    plain = harness.plain(script, env=OFFLINE)
    traced = harness.collect(script, tmp_path / "run", env=OFFLINE)
    assert digest(plain)
    assert digest(traced) == digest(plain)

    events = read_folder(tmp_path / "run")
    bad = ("fault", "dropped", "instrument disabled")
    troubles = [e for e in events if e.kind == "mark" and e.text in bad]
    assert not troubles
    # Trainer fetches the batches of its last evaluation with grad enabled: they may begin a step.
    steps = [e for e in events if e.kind == "step" and (e.complete or "backward" in e.counters)]
    assert [e.step for e in steps] == [0, 1, 2, 3]
    assert [e.counters["backward"] for e in steps] == [microsteps] * 4
    assert [e.counters["optimizer_step"] for e in steps] == [1] * 4
    calls = [e for e in events if e.kind == "call"]
    assert [e.step for e in calls if e.family == Families.OPTIMIZER_STEP] == [0, 1, 2, 3]
    changed = [
        e.step
        for e in events
        if e.kind == "state" and (e.name, e.role, e.change) == (parameter, "parameter", "content")
    ]
    assert set(changed) >= {1, 2, 3}
    created = [e for e in events if e.kind == "optimizer"][-1]
    assert parameter in [n for group in created.groups for n in group.params]

    check = harness.run([harness.command("traincheck-check"), "-t", tmp_path / "run"])
    assert check.returncode == 0, check.stdout
