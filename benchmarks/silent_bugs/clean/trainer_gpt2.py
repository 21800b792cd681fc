"""transformers.Trainer on a tiny random GPT-2: padding ignored by -100, accumulation, warm-up."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

PAD, LONGEST = 0, 24


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.rows = []
        for _ in range(64):
            length = int(torch.randint(8, LONGEST, (), generator=generator))
            start = int(torch.randint(1, 40, (), generator=generator))
            self.rows.append(((torch.arange(length) + start) % 47) + 1)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index]
        ids = torch.full((LONGEST,), PAD)
        ids[: len(row)] = row
        mask = (torch.arange(LONGEST) < len(row)).long()
        labels = torch.where(mask.bool(), ids, torch.tensor(-100))
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=48,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            max_steps=8,
            learning_rate=5e-3,
            warmup_steps=2,
            logging_steps=4,
            save_strategy="no",
            eval_strategy="steps",
            eval_steps=4,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        data = Sentences()
        Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data).train()


main()
