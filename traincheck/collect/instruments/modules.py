"""Module calls, construction, modes, and scans of buffers after a root forward.

Of ``train()`` and ``eval()``, the outermost call is recorded, not the recursion into children.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from time import monotonic_ns
from typing import Any, TypeAlias

import orjson
import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling

from traincheck.collect.instruments._wrap import span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.observers.eval_weights import EvalFolding, EvalWeightObserver
from traincheck.collect.observers.forwards import AuxiliaryModelObserver, ModelInputObserver
from traincheck.collect.stats.calls import with_fingerprint
from traincheck.collect.stats.next_token_labels import ONCE
from traincheck.collect.templates import EXCEPTION, MODULE_CALL, MODULE_CALL_OF_ONE, WITH_PLACE
from traincheck.collect.tensors.reading import has_plain_mode, is_training, own, unseen
from traincheck.collect.tensors.summarize import dotted, encode, encode_named, escaped
from traincheck.collect.trace_writer.call_site import place, where
from traincheck.collect.trace_writer.emitter import Emitter, context, hidden
from traincheck.collect.trace_writer.guard import guarded, tell
from traincheck.collect.trace_writer.recording_state import is_traced, state
from traincheck.collect.tracking.naming import ByObject, unwrap
from traincheck.collect.tracking.tracked_model import TrackedModel
from traincheck.schema.torch_api import Families

_SYNC = "require_backward_grad_sync"


# Module; state of the tree and whether it is outermost; head of its records; whether they are
# requested; template of a call with one argument; whether it must be looked at closely: it wraps
# the module whose mode is recorded, or its outputs are; its path if its outputs are recorded
_Plan: TypeAlias = tuple[
    weakref.ref[torch.nn.Module], tuple[int, bool], bytes, bool, bytes, bool, str | None
]


class Modules(Instrument):
    """Wraps ``Module.__call__`` on the class. Instances can be copied, pickled and compiled."""

    name = "modules"
    is_seen_by_transforms = True
    always = True

    def install(self) -> None:
        self._heads: dict[tuple[str, bool], bytes] = {}  # of modules without a path
        self._known = (0, False)
        self._plans = ByObject[_Plan]()  # modules that are created in each step must not stay
        self._root: TrackedModel | None = None
        self._evaluated = EvalWeightObserver(self.session)
        self._untrained = AuxiliaryModelObserver(self.session)
        self._given = ModelInputObserver(self.session)
        self._folding = EvalFolding(self.session)
        self._compared = self.session.compared
        self._looks_at_buffers = self.session.tracker.wants("buffer", "forward")
        self.replace(torch.nn.Module, "__init__", self._wrap_init)
        self.replace(torch.nn.Module, "__setstate__", self._wrap_setstate)
        around = self.session.hooks.around_modules
        self.replace(
            torch.nn.Module,
            "__call__",
            lambda f: self._wrap_call(f if around is None else around(f)),
        )

    def _wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        add = self._add

        def __init__(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not is_traced() and not state._is_compiling_flag:
                add(self)

        return hidden(__init__)

    def _wrap_setstate(self, original: Callable[..., None]) -> Callable[..., None]:
        """Copies and unpickled modules are created without ``__init__``."""
        add = self._add

        def __setstate__(self: torch.nn.Module, state: Any) -> None:
            original(self, state)
            add(self)

        return hidden(__setstate__)

    def _add(self, module: torch.nn.Module) -> None:
        try:
            self.session.tracker.modules.created.add(module)
        except Exception as error:  # training must go on whatever we got wrong
            self.session.fault(self._add, error)

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session, recording, local = self.session, self.session.recording, self.session.local
        enter = self._enter_compared if session.settings.view else self._enter_root
        leave, record = self._leave_root, self._record
        evaluated = self._evaluated

        # The profiler of torch reads the local named self
        def __call__(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if is_traced() or recording.idle or state._is_compiling_flag:
                if len(args) == 1 and not kwargs:  # the usual case: no new tuple is packed
                    return original(self, args[0])
                return original(self, *args, **kwargs)
            em = local.em or session.emitter()
            if em.busy:
                return original(self, *args, **kwargs)
            is_root = em.modules == 0
            is_folded = is_root and enter(em, self, args, kwargs)
            if not recording.on or not (is_root or recording.inner_calls):
                return original(self, *args, **kwargs)
            span = em.next_span
            em.next_span = span + 1
            parent = em.top
            start = monotonic_ns()
            em.top = span
            em.modules += 1
            outer, em.module = em.module, self
            try:
                if is_folded:
                    em.busy = True
                result = original(self, *args, **kwargs)
            except BaseException as error:
                if is_folded:
                    em.busy = False
                em.modules -= 1
                em.top, em.module = parent, outer
                record(
                    em,
                    self,
                    (span, parent, start),
                    args,
                    kwargs,
                    None,
                    is_root,
                    type(error).__name__,
                )
                raise
            if is_folded:
                em.busy = False
            em.modules -= 1
            em.top, em.module = parent, outer
            if is_root and (recording.scans or evaluated.is_open):
                leave(em, span)
            record(em, self, (span, parent, start), args, kwargs, result, is_root, None)
            return result

        return hidden(__call__)

    def _enter_root(
        self,
        em: Emitter,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> bool:
        """Note that an outermost module is called. Returns whether calls within it are omitted."""
        em.busy = True
        try:
            with unseen():
                session = self.session
                grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
                if grad:
                    session.steps.forward()
                if session.recording.on:
                    stage = "train" if grad else "eval"
                    if session.clock.stage != stage:
                        session.stage(em, stage)
                    path, root = session.tracker.modules.find(module)
                    self._root = root
                    root.called()
                    session.live.models.setdefault(root.name, root.ref)
                    inner = module if root.ref() is module else unwrap(module)
                    training = is_training(inner)
                    session.live.called_modes[root.name] = training
                    if training is grad and (not grad or session.stats.is_sampled):
                        self._given.enter(em, root.name, args, kwargs, training=grad)
                    if grad:
                        if session.recording.scans or not root.is_tracked:
                            session.tracker.track(em, root)
                        else:
                            session.tracker.scans.scan_flags(em, root)
                        if session.stats.arguments.follows_batches:
                            session.stats.arguments.scan_for_next_tokens((*args, *kwargs.values()))
                    else:
                        self._evaluated.enter(em, root, training=training)
                        if self._untrained.is_wanted:
                            self._untrained.enter(em, module, path, training=training)
                        return self._folding.folds(em, root)
        except Exception as error:  # training must go on whatever we got wrong
            self.session.fault(self._enter_root, error)
        finally:
            em.busy = False
        return False

    def _enter_compared(
        self,
        em: Emitter,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> bool:
        """`_enter_root` in a view that records more before a forward."""
        is_folded = self._enter_root(em, module, args, kwargs)
        if self.session.recording.on and is_grad_enabled():
            guarded(em, tell, self.session, self.session.hooks.before_forward, em)
        return is_folded

    def _leave_root(self, em: Emitter, span: int) -> None:
        root, tracker = self._root, self.session.tracker
        is_open = self._evaluated.is_open and not torch.is_grad_enabled()
        has_buffers = (
            root is not None
            and bool(root.buffers)
            and not root.has_functional_params
            and self._looks_at_buffers
            and self.session.recording.scans
            and torch.is_grad_enabled()
        )
        if root is None or not (is_open or has_buffers):
            return
        em.busy = True
        try:
            with unseen():
                if is_open:
                    self._evaluated.leave(em, root)
                else:
                    tracker.scans.scan_buffers(em, span, root)
        except Exception as error:  # training must go on whatever we got wrong
            self.session.fault(self._leave_root, error)
        finally:
            em.busy = False

    def _record(
        self,
        em: Emitter,
        module: torch.nn.Module,
        span: tuple[int, int | None, int],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        is_root: bool,
        exception: str | None,
    ) -> None:
        session = self.session
        if not session.recording.on:
            return
        em.busy = True
        try:
            with unseen():
                found = self._plans.get(id(module))
                if (
                    found is None
                    or found[0]() is not module
                    or found[1] != (session.tracker.modules.maps, is_root)
                ):
                    found = self._plan(em, module, is_root=is_root)
                numbers = session.stats
                if (
                    numbers.is_sampled
                    or (is_root and numbers.activation)
                    or exception is not None
                    or kwargs
                    or len(args) != 1
                    or found[5]
                ):
                    body = self._body(
                        em, span[0], module, args, kwargs, result, found, is_root=is_root
                    )
                    if body is not None:
                        if exception is not None:
                            body += EXCEPTION % exception.encode()
                        em.call(*span, body)
                elif found[3]:  # the usual case: one argument without numbers
                    em.call(
                        *span,
                        found[4]
                        % (
                            b"true" if getattr(module, "training", True) else b"false",
                            encode(args[0]),
                            encode(result),
                            b""
                            if not is_root and is_grad_enabled() and not session.recording.autocast
                            else self._tail(is_root=is_root),
                        ),
                    )
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(self._record, error)
        finally:
            em.busy = False

    def _body(
        self,
        em: Emitter,
        span: int,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        plan: _Plan,
        *,
        is_root: bool,
    ) -> bytes | None:
        _, _, head, is_wanted, _, _, compared_as = plan
        numbers = self.session.stats
        told = None
        if numbers.results.is_due or (is_root and numbers.activation):
            told = numbers.results.for_result(em, module, result, is_root=is_root)
        if compared_as is not None and self._compared is not None:
            told = self._compared.result(em, compared_as, result)
        data = numbers.arguments.for_input(em, module, args) if numbers.is_sampled else b""
        if not (is_wanted or data) and (
            told is None or not numbers.results.is_interesting(module, span, told)
        ):
            return None
        given = [b'"%d":%b' % (i, encode(value)) for i, value in enumerate(args)]
        given += [orjson.dumps(k) + b":" + encode_named(k, v) for k, v in kwargs.items()]
        if data:
            given[0] = b'"0":' + data
        if is_root:
            self._tell_apart((*args, *kwargs.values()), given)
            if self._compared is not None:
                for index, value in enumerate((*args, *kwargs.values())):
                    name = f"{compared_as}.input[{index}]"
                    given[index] = self._compared.argument(em, name, value, given[index])
        sync = own(module).get(_SYNC)
        if sync is not None:  # DDP decides in its forward whether backward exchanges gradients
            given.append(b'"%b":%b' % (_SYNC.encode(), encode(bool(sync))))
        return MODULE_CALL % (
            head,
            b"true" if is_training(unwrap(module)) else b"false",
            b",".join(given),
            encode(result) if told is None else told,
            self._tail(is_root=is_root),
        )

    def _tail(self, *, is_root: bool) -> bytes:
        """The circumstances of a call; of an outermost one also the line of the program."""
        known = b"" if is_grad_enabled() and not self.session.recording.autocast else context()
        return WITH_PLACE % (known, place(sys._getframe(1))) if is_root else known

    def _tell_apart(self, values: tuple[Any, ...], given: list[bytes]) -> None:
        """Add to the texts of a root's arguments what they are known by."""
        arguments = self.session.stats.arguments
        alike = set(_alike(values))
        for index, value in enumerate(values):
            if index in alike:
                given[index] = with_fingerprint(given[index], value)
            elif is_grad_enabled():
                given[index] = arguments.with_batch_fingerprint(given[index], value)
            if arguments.is_next_tokens(value):
                given[index] = b'%b,"stats":{"shifted":%d}}' % (given[index][:-1], ONCE)

    def _plan(self, em: Emitter, module: torch.nn.Module, *, is_root: bool) -> _Plan:
        """The common parts of all records of a module. The look-up saves 3 us per call."""
        tracker = self.session.tracker
        api = f"{dotted(type(module))}.forward"  # no table by class: classes are freed, too
        if is_root:
            path: str | None = tracker.modules.find(module)[0]
        else:
            path = tracker.modules.child(module, self._root, em.module)
        head = self._head(api, path, is_root=is_root)
        # `child` may have found that modules changed. One tuple serves thousands of modules
        known = self._known
        if known != (tracker.modules.maps, is_root):
            known = self._known = (tracker.modules.maps, is_root)
        needs = self.session.needs
        wanted = (
            needs is None or needs.asks_for(api) or (is_root and Families.MODULE in needs.calls)
        )
        is_compared = self._compared is not None and self._compared.wants(path, is_root=is_root)
        compared_as = (path or api) if is_compared else None
        is_around = unwrap(module) is not module or _SYNC in own(module) or is_compared
        is_around = is_around or not has_plain_mode(type(module))
        wanted = wanted or is_compared
        of_one = escaped(head) + MODULE_CALL_OF_ONE
        plan = weakref.ref(module), known, head, wanted, of_one, is_around, compared_as
        if path is not None:  # else it may be found later
            self._plans.keep(module, plan)
        return plan

    def _head(self, api: str, path: str | None, *, is_root: bool) -> bytes:
        head = self._heads.get((api, is_root)) if path is None else None
        if head is not None:
            return head
        fields: dict[str, Any] = {"api": api, "family": Families.MODULE}
        if path is not None:
            fields["module"] = path
        if is_root:
            fields["root"] = True
        head = orjson.dumps(fields)[1:-1]
        if path is None:
            self._heads[api, is_root] = head
        return head


def _alike(values: tuple[Any, ...]) -> Iterator[int]:
    """Indices of whole-number tensors that may be equal: inputs and labels of a language model."""
    alike: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        if type(value) is torch.Tensor and value.dtype is torch.int64 and value.is_cpu:
            alike.setdefault(value.shape, []).append(index)
    return itertools.chain.from_iterable(found for found in alike.values() if len(found) > 1)


class Modes(Instrument):
    """``eval()`` calls ``train(False)``: both are recorded as ``eval``."""

    name = "modes"

    def install(self) -> None:
        self._depth = [0]
        self.replace(torch.nn.Module, "train", lambda f: self._wrap(f, Families.TRAIN))
        self.replace(torch.nn.Module, "eval", lambda f: self._wrap(f, Families.EVAL))

    def _wrap(self, original: Callable[..., Any], family: str) -> Callable[..., Any]:
        depth = self._depth

        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            mode = (
                bool(kwargs.get("mode", args[1] if len(args) > 1 else True))
                and family == Families.TRAIN
            )
            return {
                "api": Families.TRAIN if mode else Families.EVAL,
                "module": self.session.tracker.modules.find(args[0])[0],
                "where": where(),
            }

        recorded = span_wrapper(original, self.session, describe)

        def switch(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or depth[0]:
                return original(module, *args, **kwargs)
            depth[0] += 1
            try:
                return recorded(module, *args, **kwargs)
            finally:
                depth[0] -= 1

        return hidden(switch)
