"""The names of experiments, and of what becomes of one. Training loads this module."""

from __future__ import annotations


class Status:
    """The outcome of an experiment."""

    HELD = "held"
    MOVED = "moved"
    NOT_OBSERVABLE = "not_observable"
    FAILED = "failed"  # by a bug in traincheck


class Experiments:
    """Names of experiments, as `ProbeEvent.name` has them."""

    REPLAY = "replay"  # nothing is changed: the loss must be the same to the last bit
    ROW_MIXING = "row_mixing"  # another sample of the batch is changed
    BATCH_PLACE = "batch_place"  # the samples of the batch change places
    PADDING = "padding"  # the content of padding is changed
    PADDING_ROW = "padding_row"  # the vector of the padding index is zeroed
    EVAL_STATE = "eval_state"  # state of a module that is in eval mode is followed
    IN_PLACE = "in_place"  # no activation overwrites its input
    GRADIENT = "gradient"  # the loss is moved along its gradient
    LATER_TOKENS = "later_tokens"  # the tokens at later positions are changed
