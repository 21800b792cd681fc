"""Truncated backpropagation through time: the state is detached and carried to the next step."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 16, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        hidden, state = self.lstm(x, state)
        return self.head(hidden), state


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    phase = torch.rand(8, 1) * 6
    wave = torch.sin(torch.arange(321) * 0.3 + phase).unsqueeze(2)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    state = None
    for step in range(16):
        part = wave[:, step * 20 : step * 20 + 21]
        guess, state = model(part[:, :-1], state)
        state = (state[0].detach(), state[1].detach())
        loss = F.mse_loss(guess, part[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        if step % 4 == 0:
            print(step, round(loss.item(), 4))


main()
