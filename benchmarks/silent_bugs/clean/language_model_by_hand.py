"""A recurrent language model whose gradients are clipped and applied by hand; the rate decays.

The loop is that of pytorch/examples/word_language_model.
"""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, WIDTH, LAYERS, ROWS, LENGTH = 50, 32, 2, 8, 16


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(TOKENS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=0.2)
        self.decoder = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens, state):
        output, state = self.rnn(self.drop(self.encoder(tokens)), state)
        decoded = self.decoder(self.drop(output)).flatten(0, 1)
        return F.log_softmax(decoded, dim=1), state


def text(length: int) -> torch.Tensor:
    """Each token follows from the one before, but for some noise."""
    tokens = [torch.randint(0, TOKENS, (ROWS,))]
    for _ in range(length):
        noise = torch.randint(0, 3, (ROWS,))
        tokens.append((3 * tokens[-1] + noise) % TOKENS)
    return torch.stack(tokens)


def batches(tokens: torch.Tensor):
    for start in range(0, len(tokens) - 1, LENGTH):
        piece = tokens[start : start + LENGTH + 1]
        yield piece[:-1], piece[1:].flatten()


def blank() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(LAYERS, ROWS, WIDTH), torch.zeros(LAYERS, ROWS, WIDTH)


@torch.no_grad()
def evaluate(model: Model, tokens: torch.Tensor, criterion: nn.Module) -> float:
    model.eval()
    state, losses = blank(), []
    for inputs, targets in batches(tokens):
        output, state = model(inputs, state)
        losses.append(criterion(output, targets).item())
    return sum(losses) / len(losses)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training, held_out = text(160), text(48)
    model, criterion, rate, best = Model(), nn.NLLLoss(), 5.0, float("inf")
    for epoch in range(3):
        model.train()
        state = blank()
        for inputs, targets in batches(training):
            model.zero_grad()
            state = tuple(part.detach() for part in state)
            output, state = model(inputs, state)
            criterion(output, targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-rate)
        loss = evaluate(model, held_out, criterion)
        rate = rate if loss < best else rate / 4
        best = min(best, loss)
        print(f"epoch {epoch} loss {loss:.4f}")


main()
