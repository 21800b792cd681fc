"""Long-term forecasting with a decomposed linear model; train, vali and test windows of one series."""

import copy
import sys

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, Dataset

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 45
SEQ, PRED, BATCH, CHANNELS = 96, 24, 128, 4


def make_series():
    rng = np.random.default_rng(SEED)
    t = np.arange(3000)[:, None]
    base = np.sin(2 * np.pi * t / np.array([24, 24, 48, 168])) + 0.3 * np.sin(2 * np.pi * t / 7)
    drift = np.cumsum(rng.normal(0, 0.03, (3000, CHANNELS)), 0)
    return (base + drift + rng.normal(0, 0.2, base.shape)).astype("float32")


class DatasetCustom(Dataset):
    def __init__(self, raw, flag):
        n = len(raw)
        n_train, n_test = int(n * 0.7), int(n * 0.149)
        n_vali = n - n_train - n_test
        starts = [0, n_train - SEQ, n - n_test - SEQ]
        ends = [n_train, n_train + n_vali, n]
        i = ["train", "val", "test"].index(flag)
        scaler = StandardScaler().fit(raw[:n_train])
        self.data = torch.from_numpy(scaler.transform(raw)[starts[i] : ends[i]].astype("float32"))
        if flag == "test":
            self.data = self.data[: SEQ + PRED + 327]

    def __len__(self):
        return len(self.data) - SEQ - PRED + 1

    def __getitem__(self, i):
        return self.data[i : i + SEQ], self.data[i + SEQ : i + SEQ + PRED]


def data_provider(raw, flag):
    shuffle, drop_last = (False, False) if flag == "test" else (True, True)
    return DataLoader(
        DatasetCustom(raw, flag), batch_size=BATCH, shuffle=shuffle, drop_last=drop_last
    )


class DLinear(nn.Module):
    def __init__(self, kernel=25):
        super().__init__()
        self.kernel = kernel
        self.season, self.trend = nn.Linear(SEQ, PRED), nn.Linear(SEQ, PRED)

    def forward(self, x):
        x = x.transpose(1, 2)
        pad = (self.kernel - 1) // 2
        smooth = nn.functional.avg_pool1d(
            nn.functional.pad(x, (pad, pad), mode="replicate"), self.kernel, 1
        )
        return (self.season(x - smooth) + self.trend(smooth)).transpose(1, 2)


def vali(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y).item() for x, y in loader]
    model.train()
    return float(np.average(losses))


def test(model, loader):
    model.eval()
    preds, trues = [], []
    with torch.no_grad():
        for x, y in loader:
            preds.append(model(x))
            trues.append(y)
    preds, trues = torch.cat(preds), torch.cat(trues)
    print(
        f"test shape {tuple(preds.shape)} mse {((preds - trues) ** 2).mean().item():.4f} mae {(preds - trues).abs().mean().item():.4f}"
    )


def main():
    torch.manual_seed(SEED)
    raw = make_series()
    train_loader, vali_loader, test_loader = (
        data_provider(raw, f) for f in ("train", "val", "test")
    )
    model = DLinear()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    best, step, epoch = (float("inf"), None), 0, 0
    while step < STEPS:
        for x, y in train_loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
        epoch += 1
        score = vali(model, vali_loader)
        if score < best[0]:
            best = (score, copy.deepcopy(model.state_dict()))
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * 0.5**epoch
        print(f"epoch {epoch} train {loss.item():.4f} vali {score:.4f}")
    model.load_state_dict(best[1])
    test(model, test_loader)


if __name__ == "__main__":
    main()
