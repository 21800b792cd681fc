"""Names that recording and checks share: stages, roles, API families."""

from __future__ import annotations

import re

EVAL_STAGE = "eval"
STAGES = ("init", "train", EVAL_STAGE, "checkpoint")
ROLES = ("parameter", "gradient", "buffer", "optimizer_state")
TELLING = frozenset({"new", "replaced", "flags", "gone"})  # changes that say which variables exist

# Functions that do another thing in evaluation: their calls tell the module around and its mode.
MODAL = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
        "scaled_dot_product_attention",
        "batch_norm",
    )
)

_OPERATOR = re.compile(r"torch\.(Tensor\.)?[a-z_]\w*\Z")
_LOOSE = re.compile(r"opt\d+\[\d+\]\.\d+\Z")


def is_loose(name: str) -> bool:
    """Whether this is the name of a tensor that an optimizer holds and no module owns."""
    return _LOOSE.match(name) is not None


def weights_beside(name: str) -> frozenset[str]:
    """Names under which the weight that a bias is added to may be found; none for other parameters.

    Also as weight_norm, spectral_norm and parametrizations split it, and as layers by hand call it.
    """
    module, _, leaf = name.rpartition(".")
    return frozenset(f"{module}.{weight}" for weight in _WEIGHTS) if leaf in _BIASES else _NOTHING


_BIASES = frozenset({"bias", "b"})
_WEIGHTS = (
    "weight", "weight_v", "weight_g", "weight_orig", "parametrizations.weight.original",
    "parametrizations.weight.original0", "parametrizations.weight.original1", "W", "w",
)  # fmt: skip
_NOTHING: frozenset[str] = frozenset()


def is_operator(api: str) -> bool:
    """Whether this names a function or method of tensors, of which level deep takes more calls."""
    return _OPERATOR.match(api) is not None


class Marks:
    """Texts of the marks that traincheck makes, beside those of observations."""

    PROCESS = "process"  # the first of a file
    DROPPED = "dropped"  # where events are missing
    FOLDED = "evaluation folded"  # where calls within models are left out of an evaluation
    BACKWARD_ENTERED = "backward entered"  # where several ranks train
    COLLECTIVE_ENTERED = "collective entered"  # of a call that may never come back
    ENDED = "process ended"  # of a rank that was not killed
    RUN_ENDED = "run ended"  # in no trace: made of the manifest
    STALLED = "stalled"  # in no trace: made by the reader that follows a run
    FAULT = "fault"
    INSTRUMENT_DISABLED = "instrument disabled"
    PROCESS_GROUP = "process group"


MARKS = frozenset(text for name, text in vars(Marks).items() if name.isupper())


GRAD = "torch.autograd.grad"
EMBEDDING = "torch.nn.functional.embedding"
LOSS_MODULES = "torch.nn.modules.loss."  # whose functions tell what they were given
_MODULES = "torch.nn.modules"
# Calls of modules that own parameters.
LEAVES = frozenset(
    {
        f"{_MODULES}.linear.Linear.forward",
        f"{_MODULES}.linear.Bilinear.forward",
        *(f"{_MODULES}.conv.Conv{n}d.forward" for n in (1, 2, 3)),
        *(f"{_MODULES}.conv.ConvTranspose{n}d.forward" for n in (1, 2, 3)),
        *(f"{_MODULES}.batchnorm.BatchNorm{n}d.forward" for n in (1, 2, 3)),
        *(f"{_MODULES}.normalization.{n}.forward" for n in ("LayerNorm", "GroupNorm")),
        *(f"{_MODULES}.rnn.{n}.forward" for n in ("LSTM", "GRU", "RNN")),
        f"{_MODULES}.sparse.Embedding.forward",
        f"{_MODULES}.activation.MultiheadAttention.forward",
    }
)
ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
MULTI_HEAD = "torch.nn.functional.multi_head_attention_forward"
MULTI_HEAD_MODULE = "torch.nn.modules.activation.MultiheadAttention.forward"
RECURRENT = frozenset(f"torch.nn.modules.rnn.{name}.forward" for name in ("LSTM", "GRU", "RNN"))
# What losses leave out where no other ``ignore_index`` is given.
IGNORED_LABEL = -100
# Losses whose targets are parts of a batch.
TARGETED = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    )
)  # fmt: skip
# Give the elements of a tensor other dims, in the order that they lie in.
RESHAPES = frozenset({"torch.Tensor.view", "torch.Tensor.reshape", "torch.reshape"})
# How long a schedule is made for, of the creation of a scheduler: its attributes, and what is told
# beside them of MultiStepLR and of functions that transformers gives LambdaLR.
SCHEDULE_LENGTHS = ("total_steps", "T_max", "T_0", "total_iters")
LAST_MILESTONE = "last_milestone"
TRAINING_STEPS = "num_training_steps"
SOFTMAXES = frozenset({"torch.nn.functional.softmax", "torch.softmax", "torch.Tensor.softmax"})
COMPILED = "torch._dynamo.eval_frame.OptimizedModule.forward"  # what it calls is not seen
# That draw a parameter, in place.
RANDOM_INITS = frozenset(
    f"torch.nn.init.{name}_"
    for name in (
        "normal", "uniform", "trunc_normal", "xavier_normal", "xavier_uniform", "kaiming_normal",
        "kaiming_uniform", "orthogonal",
    )
)  # fmt: skip
# Calls of models and inputs that ranks share.
DDP_INIT = "torch.nn.parallel.DistributedDataParallel.__init__"
DDP_HOOK = "torch.nn.parallel.DistributedDataParallel.register_comm_hook"
DDP_FORWARD = "torch.nn.parallel.distributed.DistributedDataParallel.forward"
JOIN = "torch.distributed.algorithms.join.Join.__init__"  # a rank may run out of inputs


class Families:
    """Names shared by all members of an API family; learned and built-in checks speak of these."""

    OPTIMIZER_STEP = "torch.optim.Optimizer.step"
    # Module.zero_grad is a member: it clears the same gradients.
    ZERO_GRAD = "torch.optim.Optimizer.zero_grad"
    MODULE = "torch.nn.Module.forward"
    BACKWARD = "torch.autograd.backward"
    SCHEDULER_STEP = "torch.optim.lr_scheduler.LRScheduler.step"
    SCHEDULER_CREATED = "torch.optim.lr_scheduler.LRScheduler.__init__"
    TRAIN = "torch.nn.Module.train"
    EVAL = "torch.nn.Module.eval"
    SCALE = "torch.amp.GradScaler.scale"
    SCALER_STEP = "torch.amp.GradScaler.step"
    SCALER_UPDATE = "torch.amp.GradScaler.update"
    UNSCALE = "torch.amp.GradScaler.unscale_"
    CLIP_NORM = "torch.nn.utils.clip_grad_norm_"
    CLIP_VALUE = "torch.nn.utils.clip_grad_value_"
    # A member of CLIP_NORM: it finds the norm of what all ranks hold.
    FSDP_CLIP = "torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_"
    SET_RNG_STATE = "torch.set_rng_state"
