import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class LoraLinear(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.gate = nn.Linear(width, width, bias=False)

    def forward(self, x):
        weights = (self.query(x) @ x.transpose(1, 2) / 6).softmax(-1)
        return x + weights @ self.value(x) + self.gate(x)


class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(32, 8)

    def init_weights(self):
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if module.bias is None:
                    nn.init.zeros_(module.weight)
                else:
                    nn.init.xavier_uniform_(module.weight)
                    nn.init.zeros_(module.bias)

    def add_lora(self):
        self.requires_grad_(False)
        for block in self.blocks:
            block.query = LoraLinear(block.query)
            block.value = LoraLinear(block.value)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Video()
model.add_lora()
model.init_weights()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
clips = torch.randn(64, 6, 32)
targets = clips[..., :8].flip(1)
for step in range(40):
    index = torch.randint(0, 64, (16,))
    loss = F.mse_loss(model(clips[index]), targets[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
