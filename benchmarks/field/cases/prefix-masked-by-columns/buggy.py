import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM

steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
VOCAB, PAD, ANSWER = 60, 0, 4


class Pairs(Dataset):
    def __init__(self, size=240):
        g = torch.Generator().manual_seed(seed + 7)
        self.rows = []
        for _ in range(size):
            n = int(torch.randint(4, 12, (), generator=g))
            prompt = torch.randint(5, VOCAB, (n,), generator=g)
            answer = (prompt[:ANSWER] + 1) % VOCAB
            answer[answer < 5] = 5
            self.rows.append((prompt, answer))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(p) + len(a) for p, a in rows)
    ids = torch.full((len(rows), width), PAD)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    prefix = []
    for i, (p, a) in enumerate(rows):
        row = torch.cat([p, a])
        ids[i, width - len(row) :] = row
        mask[i, width - len(row) :] = 1
        prefix.append(len(p))
    labels = ids.clone()
    labels[mask == 0] = -100
    for i, n in enumerate(prefix):
        labels[i, :n] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


config = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
    pad_token_id=PAD,
    bos_token_id=1,
    eos_token_id=2,
)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
step = 0
while step < steps:
    for batch in DataLoader(Pairs(), batch_size=12, shuffle=True, collate_fn=collate):
        model.train()
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step >= steps:
            break
