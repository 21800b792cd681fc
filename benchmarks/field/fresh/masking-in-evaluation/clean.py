import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
BANDS, FRAMES = 20, 30


def spec_augment(features):
    features = features.clone()
    band, frame = (
        torch.randint(0, BANDS - 6, (1,)).item(),
        torch.randint(0, FRAMES - 8, (1,)).item(),
    )
    features[band : band + 6] = 0
    features[:, frame : frame + 8] = 0
    return features


class Speech(Dataset):
    def __init__(self, count, mode="train"):
        self.mode = mode
        self.words = torch.randint(0, 6, (count,))
        tones = torch.zeros(count, BANDS, FRAMES)
        for tone, word in zip(tones, self.words.tolist()):
            tone[3 * word : 3 * word + 3] = torch.sin(torch.arange(FRAMES) * (0.2 + 0.1 * word)) + 1
        self.features = tones + 0.4 * torch.randn_like(tones)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        features = self.features[index]
        if self.mode == "train":
            features = spec_augment(features)
        return features, self.words[index]


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.listen = nn.GRU(BANDS, 32, batch_first=True)
        self.say = nn.Linear(32, 6)

    def forward(self, features):
        heard, _ = self.listen(features.transpose(1, 2))
        return self.say(heard.mean(1))


train = DataLoader(Speech(128, "train"), batch_size=16, shuffle=True)
valid = DataLoader(Speech(48, "eval"), batch_size=16)
model = Recognizer()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    model.train()
    for features, words in train:
        loss = F.cross_entropy(model(features), words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    wrong = 0
    with torch.no_grad():
        for features, words in valid:
            wrong += (model(features).argmax(1) != words).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.4f} errors {wrong}")
