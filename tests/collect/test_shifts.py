"""Labels that are ahead of their tokens: told where it is certain, and nowhere else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import recording
from traincheck.collect.stats.next_token_labels import NextTokenMatcher
from traincheck.schema.values import tensors_in

CROSS_ENTROPY = "torch.nn.functional.cross_entropy"
ROWS, LENGTH, VOCABULARY = 4, 8, 11


def texts():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=generator)


TOKENS, NEXT = texts()[:, :-1], texts()[:, 1:]


def logits():
    return nn.Linear(3, VOCABULARY)(torch.randn(ROWS, LENGTH, 3))


def told(given, target, labels=NEXT, tokens=TOKENS):
    shifts = NextTokenMatcher()
    shifts.scan([tokens, labels])
    assert shifts.of_argument(given) == {}
    found = shifts.of_argument(target).get("shifted")
    return None if found is None else int(found)


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x[:, :-1].flatten(0, 1),
        lambda x: x[..., :-1, :].contiguous().view(-1, VOCABULARY),
        lambda x: x[:, : LENGTH - 1].reshape(-1, VOCABULARY).double(),
        lambda x: x.narrow(1, 0, LENGTH - 1).log_softmax(-1).transpose(1, 2),
    ],
)
def test_twice_when_the_last_logits_are_cut_off(cut):
    assert told(cut(logits()), NEXT[:, 1:].flatten()) == 2
    assert told(cut(logits()), NEXT[:, 1:]) == 2


def test_twice_when_the_end_is_padded():
    padded = F.pad(NEXT, (0, 1), value=-100)[:, 1:]
    assert told(logits().view(-1, VOCABULARY), padded.flatten()) == 2


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (lambda x: x[:, 1:], NEXT[:, 1:]),  # the first position is no prediction
        (lambda x: x[:, :-2], NEXT[:, 2:]),
        (lambda x: x[:, :-1].detach(), NEXT[:, 1:]),
        (lambda x: x[:3, :-1], NEXT[:3, 1:]),
    ],
)
def test_nothing_for_what_may_be_right(given, target):
    assert told(given(logits()).reshape(-1, VOCABULARY), target.flatten()) is None


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (lambda x: x[:, :-1], NEXT[:, :-1]),  # the last label is none
        (lambda x: x, NEXT),
    ],
)
def test_once_for_labels_that_are_used_as_they_are(given, target):
    assert told(given(logits()).reshape(-1, VOCABULARY), target.flatten()) == 1


def test_labels_that_equal_the_inputs_are_not_ahead_until_the_model_moves_them_on():
    assert told(logits()[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten(), labels=TOKENS) == 1
    assert told(logits().flatten(0, 1), TOKENS.flatten(), labels=TOKENS) == 0


def test_a_target_of_tokens_needs_no_labels_beside_them():
    shifts = NextTokenMatcher()
    shifts.scan([TOKENS])
    assert shifts.of_argument(logits().flatten(0, 1)) == {}
    assert shifts.of_argument(NEXT.flatten()) == {"shifted": torch.tensor(1)}
    assert shifts.of_argument((NEXT + 1).flatten()) == {}
    assert shifts.of_argument(TOKENS.flatten()) == {"shifted": torch.tensor(0)}
    hidden = TOKENS.masked_fill(torch.arange(LENGTH) % 3 > 0, -100)  # too few changes are left
    assert shifts.of_argument(hidden.flatten()) == {}
    shifts.clear()
    assert shifts.of_argument(NEXT.flatten()) == {}


def test_texts_may_lie_in_columns():
    shifts = NextTokenMatcher()
    shifts.scan([TOKENS.t().contiguous()])
    one = torch.tensor(1)
    assert shifts.of_argument(NEXT.t().flatten()) == {"shifted": one, "columns": one}
    assert shifts.of_argument(NEXT.t()) == {"shifted": one, "columns": one}
    by_halves = NEXT.t().reshape(2, -1, ROWS).permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert shifts.of_argument(by_halves) == {"shifted": one, "columns": one}
    assert shifts.of_argument(NEXT.flatten()) == {}
    assert shifts.of_argument(TOKENS.t().flatten()) == {"shifted": torch.tensor(0)}


def test_next_tokens_of_one_input_count_before_those_of_another():
    shifts = NextTokenMatcher()
    shifts.scan([NEXT])  # an encoder
    shifts.scan([TOKENS])  # its decoder
    assert shifts.of_argument(NEXT.flatten()) == {"shifted": torch.tensor(1)}


@pytest.mark.parametrize(
    "tokens",
    [
        torch.arange(ROWS)[:, None].repeat(1, LENGTH),  # a shift does not show
        torch.arange(6).repeat(1, 1),
        torch.rand(ROWS, LENGTH),
        torch.zeros(ROWS, 3, dtype=torch.int64),
    ],
)
def test_tensors_that_cannot_tell(tokens):
    shifts = NextTokenMatcher()
    shifts.scan([tokens, tokens.roll(-1, 1)])
    assert not shifts.is_next(tokens)
    assert not shifts._labels


def test_ignored_labels_are_passed_over():
    labels = NEXT.clone()
    labels[:, :3] = -100
    shifts = NextTokenMatcher()
    shifts.scan([TOKENS, labels])
    assert shifts.is_next(labels)
    labels = NEXT.clone()
    labels[0, 2] += 1
    shifts.scan([TOKENS, labels])
    assert not shifts.is_next(labels)


LENGTHS = torch.tensor([[2], [5], [8], [3]])
PADDED = (TOKENS + 1).masked_fill(torch.arange(LENGTH) >= LENGTHS, 0)
IS_PADDING = PADDED == 0


def hides(mask, text=PADDED, *, true_hides=True):
    shifts = NextTokenMatcher()
    shifts.note_embedded(text)
    return shifts.mask_hides_all_tokens(mask, hides=true_hides)


def test_masks_that_show_the_padding_alone():
    assert hides(~IS_PADDING)
    assert hides(IS_PADDING, true_hides=False)
    assert hides(IS_PADDING[:, None, None, :], true_hides=False)
    assert hides(torch.zeros(PADDED.shape).masked_fill(~IS_PADDING, float("-inf")))
    assert hides(~IS_PADDING.flip(1), PADDED.flip(1))  # on the left
    assert hides(~IS_PADDING, PADDED.t().contiguous())
    assert hides(~IS_PADDING[:, :ROWS], PADDED[:, :ROWS])  # as many rows as positions
    assert hides(~IS_PADDING[:, :ROWS], PADDED[:, :ROWS].t().contiguous())


@pytest.mark.parametrize(
    "mask",
    [
        IS_PADDING,
        torch.zeros(PADDED.shape).masked_fill(IS_PADDING, float("-inf")),
        torch.zeros(PADDED.shape),
        torch.zeros(PADDED.shape, dtype=torch.bool),
        torch.ones(PADDED.shape, dtype=torch.bool),
        ~IS_PADDING & (torch.arange(LENGTH) > 0),  # a token is seen, too
    ],
)
def test_masks_that_do_not(mask):
    assert hides(mask) is False


@pytest.mark.parametrize(
    "mask",
    [
        ~IS_PADDING[:, None, :].expand(-1, LENGTH, -1),  # between pairs of positions
        ~IS_PADDING[:3],
        torch.tensor(True),
    ],
)
def test_masks_of_something_else(mask):
    assert hides(mask) is None


def test_what_is_shown_may_be_one_token_for_another_reason():
    first = TOKENS.clone()
    first[:, 0] = VOCABULARY  # as one that begins all rows
    assert not hides(first != VOCABULARY, first)
    scattered = TOKENS.clone()
    scattered[0, 3], scattered[1, 2], scattered[1, 5] = [torch.tensor(VOCABULARY)] * 3
    assert not hides(scattered != VOCABULARY, scattered)  # as one to be filled in
    alike = torch.ones_like(PADDED).masked_fill(IS_PADDING, 0)
    assert not hides(~IS_PADDING, alike)  # nothing but the mask again


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 6)
        self.head = nn.Linear(6, VOCABULARY)

    def forward(self, ids, labels):
        found = self.head(self.embed(ids))
        return F.cross_entropy(found[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def train(batches):
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids, labels in batches:
        optimizer.zero_grad()
        model(ids, labels=labels).backward()
        optimizer.step()


@pytest.mark.parametrize("labels", [NEXT, TOKENS.clone()])
def test_a_run_tells_of_the_batch_the_model_and_the_loss(tmp_path, labels):
    with recording(tmp_path / "run") as run:
        train(DataLoader(TensorDataset(TOKENS, labels), batch_size=ROWS))
        train([(TOKENS, labels)])
    is_next = labels is NEXT
    (batch,) = run.of("batch")
    ids, found = (leaf["stats"].get("shifted") for leaf in batch.leaves.values())
    assert (ids, found) == (None, 1 if is_next else None)
    roots = run.calls(f"{Decoder.__module__}.Decoder.forward")
    assert [("stats" in c.args["labels"], "stats" in c.args["0"]) for c in roots] == [
        (is_next, False)
    ] * 2
    losses = [tensors_in(c.args)["target"].stats.get("shifted") for c in run.calls(CROSS_ENTROPY)]
    assert losses == [2 if is_next else 1] * 2
