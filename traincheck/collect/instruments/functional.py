"""``torch.nn.functional``, ``torch.nn.init``, some tensor functions; all operators at level deep.

Of views, those in place of a transpose are recorded. All others, thousands per step, are not.
Module calls are in modules.py.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic_ns
from typing import Any

import orjson
import torch
import torch.nn.functional
from torch.nn import init

from traincheck.collect.instruments._wrap import CallTemplates, function_wrapper, hiding
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.stats.argument_stats import FUNCTIONS, Activation
from traincheck.collect.stats.tensor_stats import FED, MASKED, SCORED, TensorStats
from traincheck.collect.templates import RESULT_IN_MODULE, WITH_IDENTITY
from traincheck.collect.tensors.reading import has_mode, is_training, unseen
from traincheck.collect.tensors.summarize import dumps, encode, summarize
from traincheck.collect.trace_writer.call_site import place, where
from traincheck.collect.trace_writer.emitter import Emitter, context, hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.trace_writer.recording_state import is_traced, state
from traincheck.collect.tracking.tracker import Tracker
from traincheck.handlers import give_back
from traincheck.schema.claims import without_sampling
from traincheck.schema.shapes import is_for_exchange
from traincheck.schema.torch_api import MODAL, MULTI_HEAD, RESHAPES, losses

# Argument names of the C functions that have no Python signature.
_C_SIGNATURES = {
    "linear": ("input", "weight", "bias"),
    "bilinear": ("input1", "input2", "weight", "bias"),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"),
        ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
    ),
    **dict.fromkeys(
        ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
        ("input", "kernel_size", "stride", "padding", "ceil_mode"),
    ),
    "scaled_dot_product_attention": (
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa",
    ),
    "gelu": ("input", "approximate"),
    "softplus": ("input", "beta", "threshold"),
    "logsigmoid": ("input",),
    "matmul": ("input", "other"),
    "bmm": ("input", "mat2"),
    "mm": ("input", "mat2"),
    "softmax": ("input", "dim", "dtype"),
    "log_softmax": ("input", "dim", "dtype"),
    "sigmoid": ("input",),
    "tanh": ("input",),
    "relu": ("input",),
    **dict.fromkeys(("sigmoid_", "tanh_", "relu_"), ("input",)),
    "dropout": ("input", "p", "train"),
    "detach": ("self",),
    "detach_": ("self",),
    "requires_grad_": ("self", "requires_grad"),
}  # fmt: skip
_C_DEFAULTS: dict[str, dict[str, Any]] = {
    "scaled_dot_product_attention": {"dropout_p": 0.0, "is_causal": False},
    "requires_grad_": {"requires_grad": True},
    "gelu": {"approximate": "none"},
}

# Tensor functions that scripts call like layers, and methods that cut or mark the graph.
DEFAULT_TORCH = (
    "matmul",
    "bmm",
    "mm",
    "einsum",
    "softmax",
    "log_softmax",
    "sigmoid",
    "tanh",
    "relu",
    "dropout",
)
DEFAULT_TENSOR = (
    "detach",
    "detach_",
    "requires_grad_",
    "relu",
    "relu_",
    "tanh",
    "tanh_",
    "sigmoid",
    "sigmoid_",
    "softmax",
    "log_softmax",
)

_LOSSES = losses()
# Functions of the dispatch, not of the computation.
_PLUMBING = (
    "has_torch_function",
    "handle_torch_function",
    "boolean_dispatch",
    "assert_int_or_pair",
    "calculate_gain",
)


class Functional(Instrument):
    """Stateless functions, each replaced in its module or in `torch.Tensor`."""

    name = "functional"
    is_seen_by_transforms = True
    observers_first = True  # they wrap what it replaces, below its wrappers

    def is_wanted(self) -> bool:
        needs = self.session.needs
        return (
            super().is_wanted()
            or needs is None
            or bool(self.session.hooks.around)
            or any(map(self.feed.has_state, without_sampling(needs.states)))
            or any(
                api.startswith("torch.") or api == "activation" for api in needs.calls | needs.stats
            )
        )

    def install(self) -> None:
        targets = list(self._targets())
        inner = {name for holder, name, api in targets if self._is_taken_alone(holder, api)}
        replaced: dict[Any, Any] = {}
        for holder, attribute, api in targets:
            original = getattr(holder, attribute)
            hides = self._hides(holder, api, inner & _named_in(original))
            if self.wants_call(api) or self.session.stats.wants_api(api):
                self._replace_function(holder, attribute, api, hides=hides)
            elif (
                api in self.session.hooks.around and holder is not torch.Tensor
            ):  # see TensorMethods
                make = functools.partial(self._below, api, hides=hides)
                self.replace(holder, attribute, make, idles=True)
            elif hides:
                self.replace(holder, attribute, lambda f: hiding(f, self.session))
            if not isinstance(holder, type) and getattr(holder, attribute) is not original:
                replaced[original] = getattr(holder, attribute)
        self._fix_defaults(replaced)

    def _is_taken_alone(self, holder: Any, api: str) -> bool:
        """Whether calls are recorded in steps in which those of other functionals may not be."""
        needs = self.session.needs
        return needs is not None and api in needs.calls and self._is_inner(holder)

    def _hides(self, holder: Any, api: str, calls: set[str]) -> bool:
        """Whether a function whose calls may not be recorded makes such calls."""
        needs = self.session.needs
        is_recorded = needs is None or api in needs.calls
        return bool(calls) and not is_recorded and not self._is_inner(holder)

    def _is_inner(self, holder: Any) -> bool:
        """Inner calls of a functional are not recorded, unless operators are requested."""
        return holder in (torch, torch.Tensor) and not self.session.settings.is_deep

    def _targets(self) -> Iterator[tuple[Any, str, str]]:
        for module in (torch.nn.functional, init):
            for name, found in vars(module).items():
                if (
                    not name.startswith(("_", *_PLUMBING))
                    and isinstance(found, (types.FunctionType, types.BuiltinFunctionType))
                    and _is_home(found, module)
                ):
                    yield module, name, f"{module.__name__}.{name}"
        if self.session.settings.is_deep:
            yield from _operators()
            return
        for name in DEFAULT_TORCH:
            yield torch, name, f"torch.{name}"
        for name in DEFAULT_TENSOR:
            yield torch.Tensor, name, f"torch.Tensor.{name}"

    def _replace_function(self, holder: Any, attribute: str, api: str, *, hides: bool) -> None:
        original = getattr(holder, attribute)
        names, defaults = signature(original, attribute)
        needs, numbers = self.session.needs, self.session.stats
        outcome: Callable[[Emitter, Any], bytes] | None = None
        sampled = None
        if numbers.activation and api in FUNCTIONS:
            sampled = numbers.results
            outcome = functools.partial(_outcome, numbers, FUNCTIONS[api])
        elif api in SCORED and api in numbers.requested:
            outcome = numbers.results.for_softmax
        elif api in MODAL:
            outcome = functools.partial(_placed, self.session.tracker)
        elif holder is init:
            outcome = functools.partial(_identified, self.session.tracker)
        skip_inner = self._is_inner(holder)
        is_rare = needs is not None and api not in needs.calls
        self.replace(
            holder,
            attribute,
            lambda f: function_wrapper(
                self._below(api, f, hides=hides),
                CallTemplates(api, names, defaults, self),
                self.session,
                skip_inner=skip_inner,
                is_rare=is_rare,
                argument=_argument(numbers, api) or self._compared(api),
                outcome=outcome,
                sampled=sampled,
            ),
            idles=True,
            is_rare=is_rare,
            skip_inner=skip_inner,
        )

    def _compared(self, api: str) -> Callable[[Emitter], Callable[[Any], bytes]] | None:
        """The encoder of the arguments of a loss function, for the comparison of runs."""
        compared = self.session.compared
        if compared is None or api not in _LOSSES:
            return None
        return lambda em: functools.partial(compared.given, em)

    def _below(self, api: str, f: Callable[..., Any], *, hides: bool) -> Callable[..., Any]:
        """The function that a replacement calls."""
        around = self.session.hooks.around.get(api)
        below = f if around is None else around(f)
        return hiding(below, self.session) if hides else below

    def _fix_defaults(self, replaced: dict[Any, Any]) -> None:
        """Replace defaults (``activation=F.relu``) bound earlier: torch compares by identity."""
        for cls in vars(torch.nn.modules.transformer).values():
            if not isinstance(cls, type):
                continue
            for function in vars(cls).values():
                bound = getattr(function, "__defaults__", None)
                if (
                    isinstance(function, types.FunctionType)
                    and bound
                    and any(_in(replaced, v) for v in bound)
                ):
                    ours = tuple(replaced[v] if _in(replaced, v) else v for v in bound)
                    self.set(function, "__defaults__", ours, bound)


def _argument(numbers: TensorStats, api: str) -> Callable[[Emitter], Callable[[Any], bytes]] | None:
    """The encoder of the arguments of ``api``, if it has a special one."""
    if api not in numbers.requested or api in SCORED:
        return None
    if api in FED:
        return lambda em: functools.partial(numbers.arguments.for_tokens, em)
    if api in MASKED:
        return lambda em: functools.partial(numbers.arguments.for_mask, em, hides=api == MULTI_HEAD)
    told = numbers.arguments.for_argument
    if numbers.is_always_requested(api):
        return lambda em: functools.partial(told, em)
    return lambda em: functools.partial(told, em) if numbers.is_sampled else encode


def _outcome(numbers: TensorStats, activation: Activation, em: Emitter, result: Any) -> bytes:
    return numbers.results.for_function(em, result, activation)


def _placed(tracker: Tracker, em: Emitter, result: Any) -> bytes:
    """The result, followed by the path and mode of the calling module."""
    module = em.module
    if module is None:
        return encode(result)
    path = orjson.dumps(tracker.modules.child(module, None))
    mode = b"true" if is_training(module) else b"false"
    return RESULT_IN_MODULE % (encode(result), path, mode)


def _identified(tracker: Tracker, em: Emitter, result: Any) -> bytes:
    """The initialized parameter, with the identity that its changes will have, and the line."""
    plain = encode(result)
    if not isinstance(result, torch.nn.Parameter) or not plain.endswith(b"}"):
        return plain
    known = WITH_IDENTITY % (plain[:-1], tracker.identities.of(result))
    return known + b',"where":' + place(sys._getframe(1))


def _in(table: dict[Any, Any], value: Any) -> bool:
    return callable(value) and value in table


def _operators() -> Iterator[tuple[Any, str, str]]:
    """All functions and tensor methods that a subclass can override, dunders included."""
    overridable = torch.overrides.get_overridable_functions()
    for holder, label in ((torch, "torch"), (torch.Tensor, "torch.Tensor")):
        functions = set(overridable.get(holder, ()))
        for name in dir(holder):
            found = inspect.getattr_static(holder, name, None)
            if name in _NO_OPERATORS or isinstance(found, type):  # `torch.autocast`
                continue
            if not callable(getattr(holder, name, None)):
                continue
            if getattr(holder, name) in functions and not isinstance(
                found, (property, types.GetSetDescriptorType)
            ):
                yield holder, name, f"{label}.{name}"


_NO_OPERATORS = frozenset(
    {"__get__", "__set__", "__delete__", "__repr__", "__format__", "__hash__", "__reduce_ex__",
     "__reduce__", "__setstate__", "__deepcopy__", "__dir__", "__len__", "__iter__",
     "__contains__", "__array__", "__array_wrap__", "__cuda_array_interface__", "backward", "dim",
     "size", "stride", "numel", "item", "is_contiguous", "data_ptr", "storage_offset",
     "untyped_storage", "is_floating_point", "is_complex", "is_same_size", "element_size",
     "get_device", "is_signed", "is_neg", "is_conj", "ndimension", "nelement"}
)  # fmt: skip


def _named_in(function: Any) -> frozenset[str]:
    """Names that a function looks up, and so may call."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return frozenset(code.co_names) if code is not None else frozenset()


def _is_home(found: Any, module: Any) -> bool:
    """Whether a function is part of this module's public API, not imported for internal use."""
    home = getattr(found, "__module__", None)
    return (
        home == module.__name__
        or isinstance(found, types.BuiltinFunctionType)
        or home == "torch._jit_internal"
    )


def signature(function: Callable[..., Any], name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Parameter names in order, and the defaults that are scalars other than None."""
    if name in _C_SIGNATURES and not isinstance(function, types.FunctionType):
        return _C_SIGNATURES[name], _C_DEFAULTS.get(name, {})
    try:
        parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    except (TypeError, ValueError) as error:
        give_back(error)
        return (), {}
    names = tuple(
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )
    defaults = {
        p.name: p.default for p in parameters if isinstance(p.default, (bool, int, float, str))
    }
    return names, defaults


_MOST_KNOWN = 4096  # variable shapes must not grow the training process


class Reshapes(Instrument):
    """``view`` and ``reshape``. Not needed at level deep, which records all operators."""

    name = "reshapes"
    is_seen_by_transforms = True

    def is_wanted(self) -> bool:
        needs = self.session.needs
        is_asked = needs is None or not RESHAPES.isdisjoint(needs.calls)
        return is_asked and not self.session.settings.is_deep

    def install(self) -> None:
        for api in sorted(RESHAPES):
            holder = torch.Tensor if api.startswith("torch.Tensor.") else torch
            name = api.rpartition(".")[2]
            self.replace(holder, name, partial(self._wrap, api), idles=True)

    def _wrap(self, api: str, function: Callable[..., Any]) -> Callable[..., Any]:
        session = self.session
        recording, local = session.recording, session.local
        known: dict[tuple[torch.Size, torch.Size], bool] = {}

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_traced() or not recording.on or state._is_compiling_flag:
                return function(*args, **kwargs)
            result = function(*args, **kwargs)
            em = local.em or session.emitter()
            # Views by torch itself are not the user's
            if em.busy or em.inner is not None or not args:
                return result
            given = args[0]
            if type(given) is not torch.Tensor or type(result) is not torch.Tensor:
                return result
            try:
                if recording.modes and has_mode():  # which would see the shapes being read
                    with unseen():
                        shapes = given.shape, result.shape
                else:
                    shapes = given.shape, result.shape
                is_told = known.get(shapes)
                if is_told is None:
                    if len(known) >= _MOST_KNOWN:
                        known.clear()
                    is_told = known[shapes] = is_for_exchange(*shapes)
                if is_told:
                    guarded(em, self._record, em, api, given, result)
            except Exception as error:  # training must go on whatever we got wrong
                session.fault(self._wrap, error)
            return result

        return hidden(wrapper)

    def _record(self, em: Emitter, api: str, given: torch.Tensor, result: torch.Tensor) -> None:
        span = em.next_span
        em.next_span = span + 1
        fields = {
            "api": api,
            "args": {"0": summarize(given)},
            "result": summarize(result),
            "where": where(),
        }
        if em.module is not None:
            fields["module"] = self.session.tracker.modules.child(em.module, None)
        em.call(span, em.top, monotonic_ns(), dumps(fields)[1:-1] + context())
