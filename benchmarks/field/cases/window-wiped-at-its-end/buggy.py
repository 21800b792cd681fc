"""Fine-tune a small causal language model with accelerate and gradient accumulation."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
VOCAB, LENGTH, ACCUMULATE = 64, 32, 4


def make_text(n, g):
    table = torch.randint(0, VOCAB, (VOCAB, 3), generator=g)
    ids = torch.zeros(n, LENGTH, dtype=torch.long)
    ids[:, 0] = torch.randint(0, VOCAB, (n,), generator=g)
    for t in range(1, LENGTH):
        ids[:, t] = table[ids[:, t - 1], torch.randint(0, 3, (n,), generator=g)]
    return ids


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [model(input_ids=ids, labels=ids).loss.item() for (ids,) in loader]
    model.train()
    return sum(losses) / len(losses)


def main():
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE, cpu=True)
    set_seed(SEED)
    ids = make_text(1200, torch.Generator().manual_seed(SEED))
    train = DataLoader(TensorDataset(ids[:1088]), batch_size=8, shuffle=True, drop_last=True)
    valid = DataLoader(TensorDataset(ids[1088:]), batch_size=56)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=LENGTH,
            n_embd=48,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, 4, STEPS)
    model, optimizer, train, valid, schedule = accelerator.prepare(
        model, optimizer, train, valid, schedule
    )
    model.train()
    optimizer.zero_grad()
    step = 0
    while step < STEPS:
        for (batch,) in train:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            if accelerator.sync_gradients:
                step += 1
                if step % 10 == 0:
                    accelerator.print(
                        f"step {step} loss {loss.item():.4f} valid {evaluate(model, valid):.4f}"
                    )
            if step == STEPS:
                break


if __name__ == "__main__":
    main()
