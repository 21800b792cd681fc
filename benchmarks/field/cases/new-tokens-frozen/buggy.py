"""Add chat tokens to a pretrained language model and fine-tune it with LoRA."""

import sys
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
USER, ASSISTANT, END = 40, 41, 42  # the new tokens


def make_data(n):
    g = torch.Generator().manual_seed(31 + SEED)
    rows = []
    for _ in range(n):
        question = torch.randint(1, 40, (6,), generator=g)
        ids = torch.cat(
            [
                torch.tensor([USER]),
                question,
                torch.tensor([ASSISTANT]),
                question.flip(0),
                torch.tensor([END]),
            ]
        )
        labels = ids.clone()
        labels[:8] = -100
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def pretrained(folder):
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder)


def main():
    set_seed(SEED)
    with tempfile.TemporaryDirectory() as out:
        model = pretrained(out)
        model.resize_token_embeddings(43, mean_resizing=False)
        model = get_peft_model(
            model,
            LoraConfig(
                r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
            ),
        )
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
        )
        trainer = Trainer(model=model, args=args, train_dataset=make_data(800))
        trainer.train()
        trainer.save_model(out)


if __name__ == "__main__":
    main()
