"""Fine-tune a small GPT-2 on sums, with the Trainer of Transformers. Nothing is downloaded.

The loss falls, and the answers never end: see README.md.
"""

from __future__ import annotations

import random
import tempfile

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

WORDS = ["<|endoftext|>", *"0123456789+="]


def build_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    characters = Tokenizer(models.WordLevel(vocabulary))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="<|endoftext|>")
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def build_rows(tokenizer: PreTrainedTokenizerFast, number: int) -> list[dict[str, list[int]]]:
    draw = random.Random(0)
    pairs = [(draw.randrange(50), draw.randrange(50)) for _ in range(number)]
    return [dict(tokenizer(f"{a}+{b}={a + b}{tokenizer.eos_token}")) for a, b in pairs]


def main() -> None:
    transformers.logging.set_verbosity_error()
    set_seed(0)
    tokenizer = build_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=32, n_embd=64, n_layer=2, n_head=4,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=120, per_device_train_batch_size=32, learning_rate=2e-3,
            logging_steps=20, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=build_rows(tokenizer, 2000),
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        trainer.train()

    model.eval()
    question = torch.tensor([tokenizer("12+34=")["input_ids"]])
    answer = model.generate(question, max_new_tokens=12, pad_token_id=tokenizer.pad_token_id)
    print("answer:", tokenizer.decode(answer[0]))


if __name__ == "__main__":
    main()
