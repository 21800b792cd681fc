"""A tiny random ViT of transformers in a loop by hand, on bytes that are scaled and normalized."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.images[:256] * 15.9, dtype=torch.uint8).unsqueeze(1)
    loader = DataLoader(
        TensorDataset(x, torch.tensor(digits.target[:256])), batch_size=32, shuffle=True
    )
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=3e-3
    )
    for epoch in range(2):
        model.train()
        for images, labels in loader:
            pixels = images.float().div(255).sub(0.5).div(0.5)
            loss = model(pixel_values=pixels, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(epoch, round(loss.item(), 3))


main()
