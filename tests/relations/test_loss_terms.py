"""loss_terms: the terms of a loss and their weights, in traces by hand and in real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.builders import MLP, TraceBuilder
from tests.golden import mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from tests.rules.provenance.losses import HEALTHY, clipped, distillation
from tests.rules.provenance.training import Loss, Parts, trained
from traincheck.schema.events import Event
from traincheck.schema.findings import Symptom

Terms = dict[str, float]
PAIR = {"cross_entropy": 0.3, "kl_div": 0.7}


def run(*steps: Terms) -> list[Event]:
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for weights in steps:
        trace.begin_step().zero_grad().forward().backward()
        parts = [{"name": n, "where": "", "weight": w, "elements": 64} for n, w in weights.items()]
        if parts:
            trace.mark("loss terms", terms=parts, constants=[])
        trace.optimizer_step()
    return trace.begin_step().build()


def test_terms_and_their_ratio_are_learned() -> None:
    learned = learn(run(*[PAIR] * 4))
    assert values_of(learned, "loss_terms", "of", what="term") == ["cross_entropy", "kl_div"]
    [terms] = claims(learned, "loss_terms", what="terms")
    assert terms.hypothesis.params["of"] == "cross_entropy + kl_div"
    assert values_of(learned, "loss_terms", "value", what="weight") == [2.33]


def test_a_scale_of_all_terms_is_not_pinned() -> None:
    learned = claims(learn(run(*[PAIR] * 4)), "loss_terms")
    scaled = {name: 1024 * weight for name, weight in PAIR.items()}
    assert not report_of(learned, run(*[scaled] * 4)).findings


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        ({"cross_entropy": 0.7, "kl_div": 0.3}, "weight"),
        ({"cross_entropy": 0.3}, "term"),
        ({"cross_entropy": 0.3, "kl_div": 0.0}, "term"),
        ({**PAIR, "mse_loss": 1.0}, "terms"),
    ],
)
def test_another_loss_breaks_a_claim(weights: Terms, what: str) -> None:
    learned = claims(learn(run(*[PAIR] * 4)), "loss_terms")
    [finding] = report_of(learned, run(*[weights] * 3)).findings
    assert finding.first_step == 0
    by_id = {invariant.id: invariant.hypothesis.params["what"] for invariant in learned}
    assert by_id[finding.check] == what


def test_weights_that_vary_are_not_learned() -> None:
    warmup = [{"Mean": 1.0, "Sum": weight} for weight in (0.0, 0.1, 0.2, 0.3, 0.4)]
    learned = learn(run(*warmup))
    assert not claims(learned, "loss_terms", what="weight")
    assert values_of(learned, "loss_terms", "of", what="term") == ["Mean"]
    assert len(claims(learned, "loss_terms", what="terms")) == 1


def test_runs_that_do_not_agree_reject_it() -> None:
    other = {"cross_entropy": 0.5, "kl_div": 0.5}
    learned = learn(run(*[PAIR] * 4), run(*[other] * 4))
    assert not claims(learned, "loss_terms", what="weight")
    assert len(claims(learned, "loss_terms", what="term")) == 2


def test_a_run_whose_losses_were_not_read_takes_nothing_away() -> None:
    learned = learn(run(*[PAIR] * 4), run(*[{}] * 4))
    assert len(claims(learned, "loss_terms")) == 4


def test_the_step_is_the_counterexample() -> None:
    params = {"what": "term", "of": "kl_div", "program": "train.py"}
    decided = decide("loss_terms", params, run(PAIR, {"cross_entropy": 1.0}, {}))
    api = "torch.nn.functional.kl_div"
    assert broken(decided) == [(1, Symptom.WRONG_VALUE, api)]
    assert sum(example.holds for example in decided) == 4


def test_unknown_claims_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing is known of"):
        decide("loss_terms", {"what": "color", "of": "red"}, [])


def labeled(*wrong: tuple[int, int]) -> list[Event]:
    """A run with so many labels without, and ignored positions with, a gradient in each step."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for left_out, ignored in wrong:
        trace.begin_step().zero_grad().forward().backward()
        found = {"root": 0, "shape": [4, 8], "trained": 20 - left_out + ignored, "total": -1.0}
        found |= {"labels": 20, "trained_labels": 20 - left_out, "trained_ignored": ignored}
        trace.mark("label positions", positions=[{**found, "ignored": 12}], compared=False)
        trace.optimizer_step()
    return trace.begin_step().build()


def test_the_mask_of_labels_is_learned() -> None:
    right = learn(labeled(*[(0, 0)] * 4))
    assert values_of(right, "loss_terms", "of", what="labels") == ["counted", "ignored"]
    for wrong, claim in (((0, 5), "ignored"), ((5, 0), "counted")):
        mine = claims(right, "loss_terms", of=claim)
        assert len(report_of(mine, labeled(*[wrong] * 2)).findings) == 1
        assert not report_of(mine, labeled(*[(0, 0)] * 2)).findings
    assert values_of(learn(labeled(*[(3, 0)] * 4)), "loss_terms", "of") == ["ignored"]


# -- real programs


def swapped(p: Parts) -> Tensor:
    out = p.out
    target = p.teacher(p.x).softmax(-1)
    soft = F.kl_div(out.log_softmax(-1), target, reduction="batchmean")
    return 0.7 * F.cross_entropy(out, p.y) + 0.3 * soft


def without_entropy(p: Parts) -> Tensor:
    chosen = p.out.log_softmax(-1).gather(1, p.y[:, None]).squeeze(1)
    ratio = torch.exp(chosen - chosen.detach())
    return -(ratio * torch.randn(16)).mean() + 0.5 * F.mse_loss(
        p.other(p.x).mean(-1), torch.randn(16)
    )


def test_swapped_weights_of_a_distillation(tmp_path: Path) -> None:
    learned = claims(learn(trained(tmp_path / "a", distillation)), "loss_terms")
    assert not report_of(learned, trained(tmp_path / "b", distillation, steps=20)).findings
    [finding] = report_of(learned, trained(tmp_path / "c", swapped)).findings
    assert mentions(finding.observed, "kl_div")


def test_a_constant_in_place_of_a_term(tmp_path: Path) -> None:
    def of_teacher(p: Parts) -> Tensor:
        logits = p.teacher(p.x)
        soft = F.kl_div(logits.log_softmax(-1), logits.softmax(-1), reduction="batchmean")
        return 0.3 * F.cross_entropy(p.out, p.y) + 0.7 * soft

    learned = claims(learn(trained(tmp_path / "a", distillation)), "loss_terms")
    findings = report_of(learned, trained(tmp_path / "b", of_teacher)).findings
    assert any(mentions(finding.expected, "kl_div") for finding in findings)


def test_a_second_mean_that_is_missing(tmp_path: Path) -> None:
    learned = claims(learn(trained(tmp_path / "a", clipped)), "loss_terms")
    [finding] = report_of(learned, trained(tmp_path / "b", without_entropy)).findings
    assert mentions(finding.expected, "Mean (2)")


@pytest.mark.parametrize("loss", HEALTHY, ids=lambda loss: loss.__name__)
def test_a_longer_run_of_the_same_loss_breaks_nothing(tmp_path: Path, loss: Loss) -> None:
    learned = claims(learn(trained(tmp_path / "a", loss, steps=14)), "loss_terms")
    assert not report_of(learned, trained(tmp_path / "b", loss, steps=30)).findings
