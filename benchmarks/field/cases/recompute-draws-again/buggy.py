"""Fine-tune a small GPT-2 with dropout and gradient checkpointing."""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 30


def make_data(n):
    g = torch.Generator().manual_seed(77 + SEED)
    start = torch.randint(0, 40, (n, 1), generator=g)
    stride = torch.randint(1, 4, (n, 1), generator=g)
    ids = (start + stride * torch.arange(16)) % 40
    return [{"input_ids": r, "labels": r.clone()} for r in ids]


def main():
    set_seed(SEED)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=40,
            n_positions=32,
            n_embd=32,
            n_layer=3,
            n_head=4,
            resid_pdrop=0.2,
            embd_pdrop=0.2,
            attn_pdrop=0.2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            out,
            per_device_train_batch_size=16,
            max_steps=STEPS,
            learning_rate=3e-3,
            logging_steps=5,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=SEED,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": False},
        )
        Trainer(model=model, args=args, train_dataset=make_data(800)).train()


if __name__ == "__main__":
    main()
