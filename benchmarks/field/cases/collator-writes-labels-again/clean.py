import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
VOCAB, PAD = 80, 0
g = torch.Generator().manual_seed(seed + 2)


def example():
    n = int(torch.randint(4, 10, (), generator=g))
    prompt = torch.randint(5, 60, (n,), generator=g).tolist()
    answer = [60 + (t % 20) for t in prompt[:4]]
    ids = prompt + [3] + answer + [2]
    labels = [-100] * (n + 1) + answer + [2]
    return {"input_ids": ids, "labels": labels}


rows = [example() for _ in range(240)]


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.tensor([r["input_ids"] + [PAD] * (width - len(r["input_ids"])) for r in rows])
    labels = torch.tensor([r["labels"] + [-100] * (width - len(r["labels"])) for r in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


model = GPT2LMHeadModel(
    GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=48, n_layer=2, n_head=4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
step = 0
while step < steps:
    for batch in DataLoader(rows, batch_size=12, shuffle=True, collate_fn=collate):
        model.train()
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step >= steps:
            break
