"""Direct preference optimization of a LoRA model; the reference is the model without adapters."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
BETA = 0.1


def make_data(n):
    g = torch.Generator().manual_seed(21 + SEED)
    rows = []
    for _ in range(n):
        prompt = torch.randint(2, 40, (6,), generator=g)
        chosen, rejected = prompt.flip(0), torch.randint(2, 40, (6,), generator=g)
        rows.append((prompt, chosen, rejected))
    return rows


def collate(batch):
    chosen = torch.stack([torch.cat([p, c]) for p, c, _ in batch])
    rejected = torch.stack([torch.cat([p, r]) for p, _, r in batch])
    return torch.cat([chosen, rejected])


def logps(model, ids):
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, :-1]
    logp = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return logp[:, 5:].sum(-1)


def disable_dropout(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def main():
    set_seed(SEED)
    base = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=40,
            n_positions=32,
            n_embd=32,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.1,
            embd_pdrop=0.1,
            attn_pdrop=0.1,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    model = get_peft_model(
        base,
        LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules=["c_attn"],
            lora_dropout=0.1,
            fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        ),
    )
    disable_dropout(model)
    loader = DataLoader(
        make_data(600), batch_size=8, shuffle=True, collate_fn=collate, drop_last=True
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    model.train()
    step = 0
    while step < STEPS:
        for ids in loader:
            with torch.no_grad(), model.disable_adapter():
                reference = logps(model, ids)
            chosen, rejected = (logps(model, ids) - reference).chunk(2)
            loss = -F.logsigmoid(BETA * (chosen - rejected)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            if step >= STEPS:
                break


if __name__ == "__main__":
    main()
