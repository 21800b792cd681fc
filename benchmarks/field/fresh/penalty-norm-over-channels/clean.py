import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(12, 16 * 2 * 2)
        self.grow = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.grow(self.start(z).view(-1, 16, 2, 2))


critic = nn.Sequential(
    nn.Conv2d(1, 8, 3, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(8, 16, 3, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(64, 1),
)
generator = Generator()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))


def gradient_penalty(real, fake):
    alpha = torch.rand(len(real), 1, 1, 1)
    between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(between)
    gradients = torch.autograd.grad(scores, between, torch.ones_like(scores), create_graph=True)[0]
    gradients = gradients.view(len(gradients), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


for step in range(60):
    real = images[torch.randint(0, len(images), (32,))]
    fake = generator(torch.randn(32, 12)).detach()
    loss_d = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(real, fake)
    optimizer_d.zero_grad()
    loss_d.backward()
    optimizer_d.step()
    if step % 5 == 4:
        optimizer_g.zero_grad()
        loss_g = -critic(generator(torch.randn(32, 12))).mean()
        loss_g.backward()
        optimizer_g.step()
        if step % 20 == 19:
            print(f"step {step}: critic {loss_d.item():.3f} generator {loss_g.item():.3f}")
