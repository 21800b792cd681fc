import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
NODES, CLASSES = 150, 3


def graph():
    labels = torch.randint(0, CLASSES, (NODES,))
    chance = torch.where(labels[:, None] == labels[None], 0.08, 0.01)
    edges = (torch.rand(NODES, NODES) < chance).float().triu(1)
    adjacency = edges + edges.T + torch.eye(NODES)
    scale = adjacency.sum(1).rsqrt()
    features = F.one_hot(labels, CLASSES).float() + 1.2 * torch.randn(NODES, CLASSES)
    return features, scale[:, None] * adjacency * scale[None], labels


class Convolution(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x, adjacency):
        return adjacency @ self.linear(x)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Convolution(CLASSES, 16)
        self.second = Convolution(16, CLASSES)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x, adjacency):
        return self.second(self.dropout(F.relu(self.first(x, adjacency))), adjacency)


features, adjacency, labels = graph()
order = torch.randperm(NODES)
train_mask, test_mask = (torch.zeros(NODES, dtype=torch.bool) for _ in range(2))
train_mask[order[:40]] = True
test_mask[order[60:]] = True
model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
for epoch in range(40):
    model.train()
    pred = model(features, adjacency)
    loss = F.cross_entropy(pred, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 10 == 9:
        model.eval()
        with torch.no_grad():
            right = model(features, adjacency).argmax(1) == labels
        print(f"epoch {epoch}: loss {loss.item():.4f} test {right[test_mask].float().mean():.3f}")
