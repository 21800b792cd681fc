"""Early stopping on a validation set; the best weights are restored and tested."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

train, valid, test = images[:1000], images[1000:1400], images[1400:]
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
best, best_state, patience = float("inf"), None, 0
for epoch in range(12):
    model.train()
    for index in torch.randperm(1000).split(50):
        loss = F.cross_entropy(model(train[index]), labels[:1000][index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        value = F.cross_entropy(model(valid), labels[1000:1400]).item()
    schedule.step(value)
    if value < best - 1e-4:
        best, best_state, patience = value, copy.deepcopy(model.state_dict()), 0
    else:
        patience += 1
        if patience == 3:
            break
model.load_state_dict(best_state)
with torch.no_grad():
    right = (model(test).argmax(1) == labels[1400:]).float().mean()
print(f"stopped after {epoch + 1} epochs at {best:.4f}, test {right:.3f}")
