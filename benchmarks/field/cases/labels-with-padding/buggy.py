import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
VOCAB, EOS, WIDTH = 64, 63, 40
g = torch.Generator().manual_seed(seed + 3)
texts = []
for _ in range(200):
    n = int(torch.randint(5, 16, (), generator=g))
    start = int(torch.randint(0, 40, (), generator=g))
    texts.append([(start + 2 * i) % 60 for i in range(n)])


def encode(text):
    ids = text + [EOS]
    return ids + [EOS] * (WIDTH - len(ids)), [1] * len(ids) + [0] * (WIDTH - len(ids))


pairs = [tuple(torch.tensor(v) for v in encode(t)) for t in texts]
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=VOCAB,
        n_positions=WIDTH,
        n_embd=48,
        n_layer=2,
        n_head=4,
        bos_token_id=EOS,
        eos_token_id=EOS,
    )
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = 0
while step < steps:
    for ids, mask in DataLoader(pairs, batch_size=10, shuffle=True):
        model.train()
        out = model(input_ids=ids, attention_mask=mask, labels=ids)
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {out.loss.item():.4f}")
        if step >= steps:
            break
model.eval()
with torch.no_grad():
    print(
        model.generate(
            torch.tensor([[4, 6, 8]]), max_new_tokens=6, do_sample=False, pad_token_id=EOS
        )[0].tolist()
    )
