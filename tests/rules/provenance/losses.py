"""Losses of many kinds that are all correct: no rule about provenance may report one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.rules.provenance.training import Loss, Parts


def plain(p: Parts) -> Tensor:
    return F.cross_entropy(p.out, p.y)


def smoothed(p: Parts) -> Tensor:
    return F.cross_entropy(p.out, p.y, label_smoothing=0.1)


def z_loss(p: Parts) -> Tensor:
    out = p.out
    return F.cross_entropy(out, p.y) + 1e-4 * out.logsumexp(-1).pow(2).mean()


def distillation(p: Parts) -> Tensor:
    out = p.out
    with torch.no_grad():
        target = p.teacher(p.x).softmax(-1)
    soft = F.kl_div(out.log_softmax(-1), target, reduction="batchmean")
    return 0.3 * F.cross_entropy(out, p.y) + 0.7 * soft


def distillation_with_a_printed_metric(p: Parts) -> Tensor:
    out = p.out
    with torch.no_grad():
        target = p.teacher(p.x)
        metric = F.mse_loss(target, out) + F.cross_entropy(target, p.y)
    assert metric.item() >= 0
    return F.mse_loss(out, target)


def focal(p: Parts) -> Tensor:
    each = F.cross_entropy(p.out, p.y, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def rmse(p: Parts) -> Tensor:
    return torch.sqrt(F.mse_loss(p.out, torch.zeros(16, 4)) + 1e-8)


def logarithm(p: Parts) -> Tensor:
    return torch.log(F.mse_loss(p.out, torch.zeros(16, 4)))


def flooding(p: Parts) -> Tensor:
    return (F.cross_entropy(p.out, p.y) - 0.1).abs() + 0.1


def squared(p: Parts) -> Tensor:
    return F.mse_loss(p.out, torch.zeros(16, 4)) ** 2


def uncertainty(p: Parts) -> Tensor:
    first, second = F.cross_entropy(p.out, p.y), F.mse_loss(p.other(p.x), torch.zeros(16, 4))
    scale = torch.exp(-p.weights)
    return scale[0] * first + p.weights[0] + scale[1] * second + p.weights[1]


def homoscedastic(p: Parts) -> Tensor:
    first, second = F.cross_entropy(p.out, p.y), F.mse_loss(p.other(p.x), torch.zeros(16, 4))
    return (torch.exp(-p.weights) * torch.stack([first, second]) + p.weights).sum()


def normalized(p: Parts) -> Tensor:
    first, second = F.cross_entropy(p.out, p.y), F.mse_loss(p.other(p.x), torch.zeros(16, 4))
    return first / first.detach() + second / second.detach()


def balanced(p: Parts) -> Tensor:
    first, second = F.cross_entropy(p.out, p.y), F.mse_loss(p.other(p.x), torch.zeros(16, 4))
    factor = (first / second).detach().clamp(0, 10)
    return first + factor * second


def divided(p: Parts) -> Tensor:
    return sum((F.cross_entropy(p.model(x), y) for x, y in halves(p)), torch.zeros(())) / 2


def halves(p: Parts) -> list[tuple[Tensor, Tensor]]:
    return list(zip(p.x.chunk(2), p.y.chunk(2)))


def autoencoder(p: Parts) -> Tensor:
    mean, log = p.model(p.x), p.other(p.x)
    drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log)
    reconstruction = F.mse_loss(drawn @ p.model.weight, p.x)
    divergence = -0.5 * (1 + log - mean**2 - log.exp()).sum(-1).mean()
    weight = min(1.0, p.step / 5)  # warm-up: 0 in the first step
    objective = reconstruction + divergence
    assert objective.item() == objective.item()
    return reconstruction + weight * divergence


def free_bits(p: Parts) -> Tensor:
    mean = p.out
    return F.mse_loss(mean, torch.zeros(16, 4)) + (mean**2).mean().clamp(min=0.5)


def contrastive(p: Parts) -> Tensor:
    one, two = F.normalize(p.model(p.x), dim=-1), F.normalize(p.other(p.x), dim=-1)
    logits = one @ two.t() / 0.1
    labels = torch.arange(16)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def clipped(p: Parts) -> Tensor:
    """PPO: the policy, the value and the entropy."""
    logs = p.out.log_softmax(-1)
    chosen = logs.gather(1, p.y[:, None]).squeeze(1)
    ratio = torch.exp(chosen - chosen.detach())
    gain = torch.randn(16)
    policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    value = F.mse_loss(p.other(p.x).mean(-1), torch.randn(16))
    entropy = -(logs.exp() * logs).sum(-1).mean()
    return policy + 0.5 * value - 0.01 * entropy


def penalized(p: Parts) -> Tensor:
    penalty = sum((w.abs().sum() for w in p.model.parameters()), torch.zeros(()))
    return F.cross_entropy(p.out, p.y) + 1e-3 * penalty


def with_unused_metrics(p: Parts) -> Tensor:
    out = p.out
    loss = F.cross_entropy(out, p.y)
    error = F.l1_loss(out, torch.zeros(16, 4))  # with a graph, for the log
    assert float(loss) + float(error) > 0
    return loss


def with_running_total(p: Parts) -> Tensor:
    loss = F.cross_entropy(p.out, p.y)
    total = torch.zeros(())
    total += loss.detach()
    assert (total / (p.step + 1)).item() >= 0
    return loss


def two_backwards(p: Parts) -> Tensor:
    """Two players with a backward each; their sum is only logged."""
    first, second = F.cross_entropy(p.out, p.y), F.mse_loss(p.other(p.x), torch.zeros(16, 4))
    total = first + second
    assert total.item() > 0
    first.backward()
    return second


def every_second(p: Parts) -> Tensor:
    """A second term that is trained in every second step and logged in all."""
    first, second = F.cross_entropy(p.out, p.y), F.mse_loss(p.other(p.x), torch.zeros(16, 4))
    total = first + second
    return total if p.step % 2 else first


def later(p: Parts) -> Tensor:
    """A second term whose model is frozen at first."""
    p.other.requires_grad_(p.step > 2)
    second = F.mse_loss(p.other(p.x), torch.zeros(16, 4))
    return F.cross_entropy(p.out, p.y) + 0.1 * second


def constant_offset(p: Parts) -> Tensor:
    return F.cross_entropy(p.out, p.y) + 0.5 * 1.8379 - torch.tensor(0.3)


def target_entropy(p: Parts) -> Tensor:
    """KL by hand: the entropy of the target is a constant term."""
    with torch.no_grad():
        target = p.teacher(p.x).softmax(-1)
    return (target * target.log()).sum(-1).mean() - (target * p.out.log_softmax(-1)).sum(-1).mean()


def zero_weight(p: Parts) -> Tensor:
    constant = F.mse_loss(p.teacher(p.x), torch.zeros(16, 4))
    return F.cross_entropy(p.out, p.y) + 0.0 * constant


HEALTHY: tuple[Loss, ...] = (
    plain, smoothed, z_loss, distillation, distillation_with_a_printed_metric, focal, rmse,
    logarithm, flooding, squared, uncertainty, homoscedastic, normalized, balanced, divided,
    autoencoder, free_bits, contrastive, clipped, penalized, with_unused_metrics,
    with_running_total, two_backwards, every_second, later, constant_offset, target_entropy,
    zero_weight,
)  # fmt: skip
