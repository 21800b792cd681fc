"""An evolution strategy: what random steps do to the loss is assigned as gradients, for Adam."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

PAIRS, SIGMA = 8, 0.05
torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)


@torch.no_grad()
def loss_at(place: torch.Tensor, rows: torch.Tensor) -> float:
    torch.nn.utils.vector_to_parameters(place, model.parameters())
    return F.cross_entropy(model(images[rows]), labels[rows]).item()


for _ in range(30):
    rows = torch.randint(1500, (256,))
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    gradient = torch.zeros_like(weights)
    for _ in range(PAIRS):
        noise = torch.randn_like(weights)
        slope = loss_at(weights + SIGMA * noise, rows) - loss_at(weights - SIGMA * noise, rows)
        gradient += slope / (2 * SIGMA * PAIRS) * noise
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    begin = 0
    for parameter in model.parameters():
        end = begin + parameter.numel()
        parameter.grad = gradient[begin:end].view_as(parameter)
        begin = end
    optimizer.step()
model.eval()
with torch.no_grad():
    print(round(F.cross_entropy(model(images), labels).item(), 3))
