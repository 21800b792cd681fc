"""Full-batch graph convolution: nodes with a label mask, the same input in every step."""

import torch
import torch.nn.functional as F
from torch import nn


class GraphConv(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(adjacency, x @ self.weight) + self.bias


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GraphConv(12, 16)
        self.second = GraphConv(16, 3)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(F.relu(self.first(x, adjacency)), 0.3, training=self.training)
        return self.second(hidden, adjacency)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    nodes = 60
    labels = torch.arange(nodes) % 3
    x = F.one_hot(labels, 12).float() + 0.5 * torch.randn(nodes, 12)
    linked = (labels[:, None] == labels[None, :]) & (torch.rand(nodes, nodes) < 0.2)
    linked = (linked | linked.T | torch.eye(nodes, dtype=torch.bool)).float()
    degree = linked.sum(dim=1).rsqrt()
    adjacency = (degree[:, None] * linked * degree[None, :]).to_sparse()
    known = torch.rand(nodes) < 0.4
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=5e-4)
    for step in range(16):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, adjacency)[known], labels[known])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(x, adjacency)[~known].argmax(dim=1) == labels[~known]).float().mean()
        if step % 4 == 0:
            print(step, round(loss.item(), 3), round(right.item(), 2))


main()
