"""The step number in loops of every form, each written as the string of signals it gives.

    b a batch             f forward with grad       w backward
    z zero_grad of opt0   Z of opt1                 m of the whole model
    s opt0 steps          S opt1 steps              ( ) opt0's step begins, ends (closure inside)
    k GradScaler.step that steps opt0               x GradScaler.step that skips it
    . what leaves no sign: evaluation without grad, an update by hand
    ! the user marks the end of a step      n opt1 is made
"""  # fmt: skip

from __future__ import annotations

import pytest

from traincheck.collect.steps.step_counter import MAX_ACCUMULATION, StepCounter


def play(loop, optimizers):
    """Number of the step that each signal falls in, and the counters of the steps that ended."""
    ended = []

    def alive(done):
        """Of the parameters of opt0, ``twin`` holds the same."""
        return {name for name in optimizers if not (name == "twin" and "opt0" in done)}

    counter = StepCounter(lambda: ended.append(dict(counter.counters)), alive)
    steps = []

    def step(name):
        counter.enter_optimizer(name)
        counter.exit_optimizer(name)

    def scaled():
        step("opt0")
        counter.scaler_step("opt0")

    signals = {
        "b": counter.batch,
        "f": counter.forward,
        "w": counter.backward,
        "z": lambda: counter.zero_grad("opt0"),
        "Z": lambda: counter.zero_grad("opt1"),
        "m": lambda: counter.zero_grad(None),
        "s": lambda: step("opt0"),
        "S": lambda: step("opt1"),
        "(": lambda: counter.enter_optimizer("opt0"),
        ")": lambda: counter.exit_optimizer("opt0"),
        "k": scaled,
        "x": lambda: counter.scaler_step("opt0"),
        ".": lambda: None,
        "!": counter.end,
        "n": lambda: counter.created("opt1"),
    }
    for signal in loop:
        counter.manual = counter.manual or signal == "!"
        signals[signal]()
        steps.append(counter.step)
    return steps, ended, counter


ONE, TWO = ("opt0",), ("opt0", "opt1")

# name: optimizers, signals, step of each signal; spaces are for the eye
LOOPS = {
    "zero_grad first": (ONE, "bzfws bzfws bzfws", "00000 11111 22222"),
    "zero_grad last": (ONE, "bfwsz bfwsz bfwsz", "00000 11111 22222"),
    "zero_grad before backward": (ONE, "bfzws bfzws bfzws", "00000 11111 22222"),
    "model.zero_grad first": (ONE, "bmfws bmfws bmfws", "00000 11111 22222"),
    "model.zero_grad last": (ONE, "bfwsm bfwsm bfwsm", "00000 11111 22222"),
    "no loader, zero_grad first": (ONE, "zfws zfws zfws", "0000 1111 2222"),
    "no loader, zero_grad last": (ONE, "fwsz fwsz fwsz", "0000 1111 2222"),
    "no loader, model.zero_grad first": (ONE, "mfws mfws mfws", "0000 1111 2222"),
    "no loader, zero_grad before backward": (ONE, "fzws fzws fzws", "0000 1111 2222"),
    "no module at all": (ONE, "zws zws zws", "000 111 222"),
    "no module, zero_grad last": (ONE, "wsz wsz wsz", "000 111 222"),
    "accumulation": (ONE, "zbfwbfwbfws zbfwbfwbfws", "00000000000 11111111111"),
    "accumulation, zero_grad last": (ONE, "bfwbfwsz bfwbfwsz bfwsz", "00000000 11111111 22222"),
    "accumulation without loader": (ONE, "fwfwsz fwfwsz", "000000 111111"),
    "several forwards": (ONE, "bzfffws bzfffws", "0000000 1111111"),
    "two batches of one step": (ONE, "bbzfws zbbfws", "000000 111111"),
    "two losses, two backwards": (ONE, "bzffwws bzffwws", "0000000 1111111"),
    "gan": (TWO, "bZffwSzfws bZffwSzfws", "0000000000 1111111111"),
    "gan without loader": (TWO, "ZffwSzfws ZffwSzfws", "000000000 111111111"),
    "gan, zero_grad last": (TWO, "bffwSZfwsz bffwSZfwsz", "0000000000 1111111111"),
    "two halves step together": (TWO, "bzZfwsS bzZfwsS", "0000000 1111111"),
    "two halves, zero_grad last": (TWO, "bfwsSzZ bfwsSzZ", "0000000 1111111"),
    "two halves, no loader": (TWO, "zZfwsS zZfwsS", "000000 111111"),
    # The first step waits for an optimizer that never steps, and is cut when another one repeats.
    "one of two is never used": ((*ONE, "spare"), "bzfws bzfws bzfws", "00000 01111 22222"),
    "one of two is never used, zero_grad last": (
        (*ONE, "spare"),
        "bfwsz bfwsz bfwsz",
        "00000 00011 22222",
    ),
    "one of two is never used, and holds the same": (
        (*ONE, "twin"),
        "bfwsz bfwsz bfwsz",
        "00000 11111 22222",
    ),
    "one of two misses its step": (TWO, "bZfwSzfw bZfwSzfw bZfwSzfw", "00000000 01111111 22222222"),
    "a critic, then a generator": (
        TWO,
        "bZfwS bZfwS bZfwSzfws bZfwS bZfwS bZfwSzfws",
        "00000 01111 222222222 33333 44444 555555555",
    ),
    "a critic, then a generator, no loader": (
        TWO,
        "ZfwS ZfwS ZfwSzfws ZfwS ZfwS ZfwSzfws",
        "0000 1111 22222222 3333 4444 55555555",
    ),
    "a critic, then a generator, zero_grad last": (
        TWO,
        "bfwSZ bfwSZ bfwSZfwsz bfwSZ bfwSZ bfwSZfwsz",
        "00000 00011 222222222 33333 44444 555555555",
    ),
    "the generator steps twice": (
        TWO,
        "bZfwSzfwszfws bZfwSzfwszfws",
        "0000000001111 1111122223333",
    ),
    "turns, one an iteration": (TWO, "bzfws bZfwS bzfws bZfwS", "00000 00000 11111 11111"),
    "another training follows": (ONE, "bzfws bzfws bZfwS bZfwS", "00000 11111 22222 33333"),
    "another one, fetched one ahead": (
        ONE,
        "bbfwsz bfwsz fwsz bbfwSZ bfwSZ fwSZ fwSZ",
        "000000 11111 2222 333333 44444 5555 6666",
    ),
    "another one, no loader": (ONE, "zfws zfws nZfwS ZfwS ZfwS", "0000 1111 22222 3333 4444"),
    "another one, zero_grad last": (ONE, "fwsz fwsz nfwSZ fwSZ fwSZ", "0000 1111 22222 3333 4444"),
    "a part is made for the same loop": (
        ONE,
        "bzfws bzfws nbzZfwsS bzZfwsS",
        "00000 11111 22222222 3333333",
    ),
    "sharpness aware: climb, then step": (ONE, "bfwzfwsz bfwzfwsz", "00000001 11111112"),
    # Without a loader, as a step that is missing: the first backward came to nothing.
    "sharpness aware, no loader": (ONE, "fwzfwsz fwzfwsz", "0011112 2233334"),
    "cleared before the end of a window": (
        ONE,
        "bfwbfwbzfws bfwbfwbzfws bfwbfwbzfws",
        "0" * 11 + "1" * 11 + "2" * 11,
    ),
    "the same, no loader": (ONE, "fwfwzfws fwfwzfws fwfwzfws", "00000000 11111111 22222222"),
    # The first clearing may be inside a window; from the second on, the step is missing.
    "missing step of windows": (ONE, "fwfwz fwfwz fwfwz", "00000 00001 11112"),
    "cleared after each pass, no loader": (ONE, "zfwzfws zfwzfws", "0001111 2223333"),
    "lbfgs": (ONE, "b(zfwzfw) b(zfwzfwzfw)", "000000000 111111111111"),
    "lbfgs without loader": (ONE, "(zfwzfw) (zfw) (zfwzfw)", "00000000 11111 22222222"),
    "scaler": (ONE, "bzfwk bzfwk bzfwk", "00000 11111 22222"),
    "scaler skips": (ONE, "bzfwk bzfwx bzfwx bzfwk", "00000 11111 22222 33333"),
    "scaler skips at first, no loader": (ONE, "zfwx zfwx zfwk", "0000 1111 2222"),
    "missing step, zero_grad first": (ONE, "bzfw bzfw bzfw", "0000 0111 1222"),
    "missing step, zero_grad last": (ONE, "bfwz bfwz bfwz", "0000 1111 2222"),
    "missing zero_grad": (ONE, "bfws bfws bfws", "0000 1111 2222"),
    "missing zero_grad, no loader": (ONE, "fws fws fws", "000 111 222"),
    "step before backward": (ONE, "bzfsw bzfsw bzfsw", "00000 11111 22222"),
    "step first of all": (ONE, "bszfw bszfw bszfw", "00011 11122 22233"),
    "evaluation after each step": (ONE, "bzfws... bzfws...", "00000000 11111111"),
    "evaluation with grad, once": (ONE, "bzfws ff bzfws", "00000 11 11111"),
    "by hand, model.zero_grad": ((), "fw.m fw.m fw.m", "0001 1112 2223"),
    "by hand, gradients set to None": ((), "fw. fw. fw.", "000 011 122"),
    "marked by the user": (ONE, "zfws! zfwszfws! zfw!", "00001 111111112 2223"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_step_of_each_signal(name):
    optimizers, loop, expected = LOOPS[name]
    loop, expected = loop.replace(" ", ""), expected.replace(" ", "")
    assert len(loop) == len(expected), "the table itself is wrong"
    found, _, _ = play(loop, optimizers)
    assert "".join(map(str, found)) == expected


@pytest.mark.parametrize("accumulated", [2, 8, 64])
def test_missing_step_and_zero_grad_still_advance(accumulated):
    """Nothing tells a missing step from accumulation but that it never ends."""
    found, ended, _ = play("bfw" * 3 * MAX_ACCUMULATION, ONE)
    # From the first backward that is too many to be accumulated, each is a separate step.
    assert found[-1] == 2 * MAX_ACCUMULATION
    assert all(counters["optimizer_step"] == 0 for counters in ended)
    found, _, _ = play("bfw" * accumulated + "s", ONE)  # the twin: all of it is one step
    assert found[-1] == 0


def test_an_optimizer_that_is_used_later_joins():
    """Warm-up of the head alone, then both."""
    found, _, _ = play("bzfws" * 2 + "bzZfwsS" * 3, ONE)
    assert found == [0] * 5 + [1] * 5 + [2] * 7 + [3] * 7 + [4] * 7


def test_counters_are_those_of_the_step():
    _, ended, counter = play("bzfwfwsbz", ONE)
    assert ended == [
        {
            "batch": 1,
            "forward": 2,
            "backward": 2,
            "zero_grad": 1,
            "optimizer_step": 1,
            "scaler_step": 0,
        }
    ]
    assert counter.counters["batch"] == counter.counters["zero_grad"] == 1
    assert counter.counters["backward"] == 0


def test_a_skipped_scaler_step_is_counted_as_such():
    _, ended, _ = play("bzfwkbzfwxb", ONE)
    assert [(c["optimizer_step"], c["scaler_step"]) for c in ended] == [(1, 1), (0, 1)]


@pytest.mark.parametrize(
    ("loop", "is_between"),
    [
        ("", False),
        ("bzfw", False),
        ("bzfws", True),
        ("bfwsz", True),
        ("b(zfw", False),
        ("zfwx", True),
    ],
)
def test_between_iterations(loop, is_between):
    _, _, counter = play(loop, ONE)
    assert counter.is_between is is_between


def test_windows_whose_steps_are_not_seen_are_told_apart_by_what_clears():
    """An optimizer that was made before the recording."""
    found, ended, _ = play("zfwfwfw" * 6, ONE)
    assert found[-1] == 5
    assert [counters["backward"] for counters in ended] == [3] * 5
