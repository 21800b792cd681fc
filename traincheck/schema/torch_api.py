"""Names of torch's API that recording and checks share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

FUNCTIONAL = "torch.nn.functional."

# Functions that behave differently in evaluation: their calls record the module and its mode.
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


def is_operator(api: str) -> bool:
    """Whether this is a function or method of tensors. Level deep records more calls of these."""
    return _OPERATOR.match(api) is not None


Target = Literal["class", "probability", "value", "distribution", "other"]


class Loss(NamedTuple):
    """A loss function of torch.nn.functional.

    Attributes:
        module: class in torch.nn that calls it.
        target: what its target holds: indices of classes, probabilities, values to be predicted,
            a distribution, or something else.
    """

    module: str
    target: Target = "other"


# By name in torch.nn.functional.
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss("CrossEntropyLoss", "class"),
    "nll_loss": Loss("NLLLoss", "class"),
    "binary_cross_entropy": Loss("BCELoss", "probability"),
    "binary_cross_entropy_with_logits": Loss("BCEWithLogitsLoss", "probability"),
    "mse_loss": Loss("MSELoss", "value"),
    "l1_loss": Loss("L1Loss", "value"),
    "smooth_l1_loss": Loss("SmoothL1Loss", "value"),
    "huber_loss": Loss("HuberLoss", "value"),
    "kl_div": Loss("KLDivLoss", "distribution"),
    "gaussian_nll_loss": Loss("GaussianNLLLoss"),
    "poisson_nll_loss": Loss("PoissonNLLLoss"),
    "multi_margin_loss": Loss("MultiMarginLoss"),
    "hinge_embedding_loss": Loss("HingeEmbeddingLoss"),
    "cosine_embedding_loss": Loss("CosineEmbeddingLoss"),
    "ctc_loss": Loss("CTCLoss"),
    "margin_ranking_loss": Loss("MarginRankingLoss"),
    "soft_margin_loss": Loss("SoftMarginLoss"),
}


def losses(*targets: Target) -> frozenset[str]:
    """APIs of the losses with one of these targets; of all losses if none is given."""
    return frozenset(
        f"{FUNCTIONAL}{name}"
        for name, loss in LOSSES.items()
        if not targets or loss.target in targets
    )


HUBER = f"{FUNCTIONAL}huber_loss"
# Losses whose targets are parts of a batch.
TARGETED = losses("class", "probability", "value")
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


# The calls of a training loop; models are landmarks only as roots.
LANDMARKS = frozenset(
    value for name, value in vars(Families).items() if name.isupper() and value != Families.MODULE
)

# The functions by which layers of torch fill their parameters when they are created
INITIALIZERS = frozenset(
    f"torch.nn.init.{name}_"
    for name in (
        "kaiming_uniform", "uniform", "normal", "ones", "zeros", "constant", "xavier_uniform",
        "xavier_normal",
    )
)  # fmt: skip
