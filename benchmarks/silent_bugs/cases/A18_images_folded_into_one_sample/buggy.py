"""Images with prompts, prepared by a processor of our own."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def process(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pixels and prompt ids of a batch; a prompt names the digit that is shown."""
    pixels = torch.stack([image for image, _ in samples])
    prompts = torch.stack([torch.arange(12) + label for _, label in samples])
    return {"pixel_values": pixels[None], "input_ids": prompts[:1]}


class Matcher(nn.Module):
    """Whether an image shows what its prompt says."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.read = nn.Linear(64, 32), nn.Embedding(24, 32)

    def forward(self, pixels: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        seen, read = self.see(pixels), self.read(ids).mean(1)
        return F.cosine_similarity(seen.reshape(len(ids), -1, 32).mean(1), read)


loader = DataLoader(list(zip(images, labels)), 50, shuffle=True, collate_fn=process)
model = Matcher()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, batch in enumerate(loader):
    optimizer.zero_grad()
    loss = 1 - model(batch["pixel_values"], batch["input_ids"]).mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, round(loss.item(), 3))
