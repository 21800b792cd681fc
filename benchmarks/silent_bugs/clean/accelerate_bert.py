"""Accelerate with a tiny random BERT classifier: accumulation, clipping, a prepared schedule."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

STEPS = 8


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=32,
    )
    model = BertForSequenceClassification(config)
    ids = torch.randint(1, 60, (128, 16))
    lengths = torch.randint(6, 17, (128, 1))
    mask = (torch.arange(16)[None] < lengths).long()
    ids = ids * mask
    labels = (ids[:, 0] > 30).long()
    loader = DataLoader(TensorDataset(ids, mask, labels), batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, STEPS)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for index, (words, attended, wanted) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(input_ids=words, attention_mask=attended, labels=wanted).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if index % 4 == 0:
            print(index, round(loss.item(), 3))


main()
