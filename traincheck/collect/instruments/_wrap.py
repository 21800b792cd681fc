"""Turn calls into spans.

Wrappers never change what a call does, returns or raises. Errors in them are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
from torch import is_grad_enabled

from traincheck.collect.masking import is_secret
from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.templates import CALL_IN_SPAN, CALL_OUTSIDE, WITH_EXCEPTION
from traincheck.collect.tensors.reading import has_mode, unseen
from traincheck.collect.tensors.summarize import dumps, encode, escaped, summarize_named
from traincheck.collect.trace_writer.emitter import Emitter, context, hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.trace_writer.recording_state import is_traced, state
from traincheck.handlers import give_back
from traincheck.schema.marks import MASK

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder
    from traincheck.collect.stats.calls import ResultStats

_dumps = orjson.dumps

# Fields of a record; serialized, without braces, for calls in every step
Describe: TypeAlias = Callable[
    [Emitter, tuple[Any, ...], Mapping[str, Any], Any], "dict[str, Any] | bytes"
]
Encode: TypeAlias = Callable[[Emitter, Any], bytes]
Count: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], None]
Before: TypeAlias = Callable[[Emitter, tuple[Any, ...]], None]
After: TypeAlias = Callable[[Emitter, int, tuple[Any, ...], Mapping[str, Any], Any], None]


def span_wrapper(  # noqa: C901
    function: Callable[..., Any],
    session: Recorder,
    describe: Describe,
    *,
    before: Before | None = None,
    after: After | None = None,
    looks: bool = False,
    count: Count | None = None,
    counted: Count | None = None,
) -> Callable[..., Any]:
    """Wrap a landmark of the training loop, so that each call becomes a span with scans around it.

    Args:
        function: the landmark.
        session: records it.
        describe: the specific fields of the record, from arguments and result (None after an
        exception).
        before: runs before the call; its errors are only counted.
        after: runs after the call and before the record is written; its errors are only counted.
        looks: whether both run only in steps with scans of variables.
        count: reports a call in training to the step counter before it runs. Also in steps that are
        not recorded, in which nothing else is done: each line is cold then and takes ten times as
        long.
        counted: the same after the call.
    """
    recording, local, clock = session.recording, session.local, session.clock

    # One function: each further call costs a microsecond or more
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: C901, PLR0912
        if is_traced() or state._is_compiling_flag:
            return function(*args, **kwargs)
        if count is not None:
            try:
                count(args, kwargs)  # may end the step, and so turn the recording
            except Exception as error:  # training must go on whatever we got wrong
                session.fault(count, error)
        if not recording.on:
            result = function(*args, **kwargs)
            if counted is not None:
                _tell(session, counted, args, kwargs)
            return result
        em = local.em or session.emitter()
        if em.busy:
            return function(*args, **kwargs)
        if count is not None and clock.stage != "train":
            guarded(em, session.stage, em, "train")
        if before is not None and (recording.scans or not looks):
            guarded(em, before, em, args)
        span = em.next_span
        em.next_span = span + 1
        parent = em.top
        start = monotonic_ns()
        em.top = span  # after the last call: an exception of a signal handler is handled below
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            em.top = parent
            guarded(em, _failed, em, describe, (span, parent, start), args, kwargs, error)
            raise
        em.top = parent
        if counted is not None:
            _tell(session, counted, args, kwargs)
        if after is not None and recording.on and (recording.scans or not looks):
            guarded(em, after, em, span, args, kwargs, result)
        if recording.on:
            em.busy = True
            try:
                with unseen():
                    fields = describe(em, args, kwargs, result)
                    body = fields if isinstance(fields, bytes) else dumps(fields)[1:-1]
                    em.call(span, parent, start, body)
            except Exception as error:
                session.fault(describe, error)
            finally:
                em.busy = False
        return result

    return hidden(wrapper)


def _tell(
    session: Recorder, count: Count, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    try:
        count(args, kwargs)
    except Exception as error:  # training must go on whatever we got wrong
        session.fault(count, error)


def _failed(
    em: Emitter,
    describe: Describe,
    span: tuple[int, int | None, int],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: BaseException,
) -> None:
    """Record a call that ended with an exception."""
    if em.session.recording.on:
        fields = describe(em, args, kwargs, None)
        body = fields if isinstance(fields, bytes) else dumps(fields)[1:-1]
        em.call(*span, WITH_EXCEPTION % (body, type(error).__name__.encode()))


def span_listener(session: Recorder, describe: Describe) -> Around:
    """`span_wrapper` for a function that others listen to as well."""

    def before(args: Args, kwargs: Named) -> tuple[Any, ...]:
        em = session.local.em or session.emitter()
        span, parent = em.next_span, em.top
        em.next_span, em.top = span + 1, span
        return em, (span, parent, monotonic_ns()), args, kwargs

    def left(note: tuple[Any, ...] | None, failed: BaseException | None) -> None:
        if note is not None:
            em, span, args, kwargs = note
            em.top = span[1]
            if failed is not None:
                _failed(em, describe, span, args, kwargs, failed)

    def after(note: tuple[Any, ...] | None, args: Args, kwargs: Named, result: Any) -> None:
        if note is not None and session.recording.on:
            em, span, _, _ = note
            em.call(*span, dumps(describe(em, args, kwargs, result))[1:-1])

    return Around(before, after, left)


def function_wrapper(  # noqa: C901, PLR0915  # one function: each call on the way costs
    function: Callable[..., Any],
    templates: CallTemplates,
    session: Recorder,
    *,
    skip_inner: bool = False,
    is_rare: bool = False,
    argument: Callable[[Emitter], Callable[[Any], bytes]] | None = None,
    outcome: Encode | None = None,
    sampled: ResultStats | None = None,
) -> Callable[..., Any]:
    """Wrap a stateless function: `span_wrapper` inlined, because nine calls in ten pass here.

    skip_inner: omit calls made by another recorded function. is_rare: record in some steps.
    argument: returns the encoder of arguments. outcome: that of the result, if due.
    """
    recording, local = session.recording, session.local

    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: C901, PLR0912, PLR0915
        if is_traced() or not recording.on or state._is_compiling_flag:
            return function(*args, **kwargs) if kwargs else function(*args)
        if is_rare and not recording.inner_calls:
            return function(*args, **kwargs) if kwargs else function(*args)
        em = local.em or session.emitter()
        parent, inner = em.top, em.inner
        if em.busy or (skip_inner and inner is not None) or inner is templates:
            return function(*args, **kwargs)  # the last: torch calls a subclass separately
        span = em.next_span
        em.next_span = span + 1
        start = monotonic_ns()
        em.top, em.inner = span, templates
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            em.top, em.inner = parent, inner
            guarded(em, _failed, em, templates.describe, (span, parent, start), args, kwargs, error)
            raise
        em.top, em.inner = parent, inner
        em.busy, guard = True, None
        try:
            if recording.modes and has_mode():  # else only subclasses would see us: `encode` knows
                guard = unseen()
                guard.__enter__()
            if argument is None and len(args) == 1 and not kwargs:  # every other call
                inside, outside, _ = templates[1]
                given = encode(args[0])
            else:
                inside, outside, more = templates[(len(args), *kwargs) if kwargs else len(args)]
                text = encode if argument is None else argument(em)
                given = more % tuple(map(text, (*args, *kwargs.values()) if kwargs else args))
            if outcome is None or (sampled is not None and not sampled.is_due):
                told = encode(result)
            else:
                told = outcome(em, result)
            tail = b"" if is_grad_enabled() and not recording.autocast else context()
            seq, now, place = em.seq, monotonic_ns(), em.clock.fields
            if parent is None:
                line = outside % (seq, now, place, span, start, given, told, tail)
            else:
                line = inside % (seq, now, place, span, parent, start, given, told, tail)
            if em.seq != seq:  # a signal handler of the program has recorded meanwhile
                em.append(line, seq)
            else:  # `append`, inlined
                em.seq = seq + 1
                try:
                    em.put(line)
                except ValueError as error:
                    if error.__traceback__.tb_next is None:  # type: ignore[union-attr]
                        em.seq = seq  # of no handler, and no call since: the number is free
                    give_back(error)
                    em.overflow(line, seq)
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(templates, error)
        finally:
            em.busy = False
            if guard is not None:
                guard.__exit__(None, None, None)
        return result

    return hidden(wrapper)


def hiding(function: Callable[..., Any], session: Recorder) -> Callable[..., Any]:
    """Wrap a function whose own calls may not be recorded: what it calls is left out, too."""
    recording, local = session.recording, session.local

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_traced() or not recording.on or state._is_compiling_flag:
            return function(*args, **kwargs)
        em = local.em or session.emitter()
        if em.inner is not None:
            return function(*args, **kwargs)
        em.inner = wrapper
        try:
            return function(*args, **kwargs)
        finally:
            em.inner = None

    return hidden(wrapper)


class CallTemplates(dict[Any, tuple[bytes, bytes, bytes]]):
    """Templates of records of one function, by number of arguments and keywords.

    Three for each: the record inside another span, the record outside of any, and the arguments for
    both as one text. For a single argument, the text is its value.

    Args:
        api: the recorded name.
        names: of the positional parameters.
        defaults: recorded values of parameters that are not passed.
        owner: the instrument.
    """

    def __new__(cls, *_: Any, **__: Any) -> CallTemplates:
        """Its own: dynamo of torch 2.7 guards the length of dicts without, and compiles again."""
        return super().__new__(cls)

    def __init__(
        self, api: str, names: tuple[str, ...], defaults: dict[str, Any], owner: object
    ) -> None:
        self.api = api
        self.owner = owner
        self._names = names
        self.defaults = defaults

    def labels(self, count: int) -> tuple[str, ...]:
        """Names of the first ``count`` positional arguments."""
        return self._names[:count] + tuple(str(i) for i in range(len(self._names), count))

    def describe(
        self, em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> dict[str, Any]:
        """Fields of a record that no template fits."""
        labels = self.labels(len(args))
        given = {name: summarize_named(name, value) for name, value in zip(labels, args)}
        given.update({name: summarize_named(name, value) for name, value in kwargs.items()})
        return {"api": self.api, "args": {**self.defaults, **given}}

    def __missing__(self, key: int | tuple[Any, ...]) -> tuple[bytes, bytes, bytes]:
        count, *keywords = (key,) if isinstance(key, int) else key
        labels = [*self.labels(count), *keywords]
        unset = {name: value for name, value in self.defaults.items() if name not in labels}
        fixed = [escaped(_dumps(name) + b":" + _dumps(value)) for name, value in unset.items()]
        given = [escaped(_dumps(name)) + _slot(name) for name in labels]
        if len(given) > 1 or (given and keywords):
            given[0] = escaped(_dumps(labels[0])) + b":%b"  # one slot for the text of all of them
        first = b",".join(given[:1] + fixed) if given else b"%b" + b",".join(fixed)
        fields = b'"api":' + escaped(_dumps(self.api))
        fields += b',"args":{' + first + b'},"result":%b%b}\n'
        made = self[key] = (
            CALL_IN_SPAN + fields,
            CALL_OUTSIDE + fields,
            b",".join([_slot(labels[0])[1:], *given[1:]]) if given else b"",
        )
        return made


def _slot(name: str) -> bytes:
    """The slot of an argument; masked if its name looks like that of a secret."""
    return b':"%b"%%.0b' % MASK.encode() if is_secret(name) else b":%b"
