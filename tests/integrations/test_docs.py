"""The page on checking in process: its examples run, and tell of a bug where there is one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import traincheck

PAGE = Path(__file__).parents[2] / "docs" / "in-process.md"
BLOCKS = re.findall(r"^## (.+?)\n|^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
EXTRAS = ("Lightning", "Transformers", "Accelerate")


def examples() -> list[tuple[str, str]]:
    """Heading and code of each block."""
    heading, found = "Begin", []
    for title, code in BLOCKS:
        heading = title or heading
        if code:
            found.append((heading, code))
    return found


def train(
    model: nn.Module,
    optimizer: Any,
    loader: Any,
    backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
) -> None:
    """Forgets zero_grad."""
    for x, y in loader:
        backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()


def extras(heading: str, folder: Path) -> dict[str, Any]:
    """What an example of a framework takes for granted."""
    if heading == "Lightning":
        import lightning

        class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Linear(4, 1)

            def training_step(self, batch, index):
                return nn.functional.mse_loss(self.net(batch[0]), batch[1])

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())

        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        return {"module": Module(), "settings": {"accelerator": "cpu", **dict.fromkeys(off, False)}}
    if heading == "Transformers":
        import transformers as hf

        config = hf.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
        arguments = hf.TrainingArguments(
            str(folder), max_steps=3, report_to=[], use_cpu=True, disable_tqdm=True,
            save_strategy="no",
        )  # fmt: skip
        rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (8, 8))]
        return {"gpt": hf.GPT2LMHeadModel(config), "arguments": arguments, "rows": rows}
    if heading == "Accelerate":
        import accelerate

        return {"accelerator": accelerate.Accelerator(cpu=True)}
    return {}


@pytest.mark.parametrize(
    ("heading", "code"), examples(), ids=[heading for heading, _ in examples()]
)
def test_an_example_runs(heading, code, tmp_path, monkeypatch, caplog) -> None:
    if heading in EXTRAS:
        pytest.importorskip(heading.lower())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    space = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loader": DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), 2),
        "train": train,
        "traincheck": traincheck,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own
        space.update(extras(heading, tmp_path))
        exec(compile(code, str(PAGE), "exec"), space)
    has_bug = heading not in ("Lightning", "Transformers")
    assert ("TC201" in caplog.text) is (has_bug and "every=10" not in code)


def test_all_frameworks_are_there() -> None:
    assert {heading for heading, _ in examples()} >= set(EXTRAS)
