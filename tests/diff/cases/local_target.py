"""A target network follows what each rank sees, not the trained network (alf#1475)."""

import torch
import torch.distributed as dist
from common import VARIANT, Net, data, loader, step
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Agent(nn.Module):
    """A network, and its slow copy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.target = Net().requires_grad_(False)
        self.target.load_state_dict(self.net.state_dict())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs) + 0.1 * self.target(inputs)

    def follow(self, rate: float) -> None:
        """Move the copy towards the network."""
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, rate)


dist.init_process_group("gloo")
torch.manual_seed(0)
agent = Agent()
wrapped = DistributedDataParallel(agent)
optimizer = torch.optim.SGD(agent.net.parameters(), lr=0.1)
for inputs, labels in loader(data(64, seed=7 + dist.get_rank())):
    step(wrapped, optimizer, inputs, labels)
    agent.follow(inputs.std().item() / 10 if VARIANT == "b" else 0.1)
dist.barrier()
dist.destroy_process_group()
