"""Makes methods of clients from operations: a blocking one and an awaitable twin from each.

Both twins have the behaviour, parameters and docstring of the operation, in editors, type checkers and
``help()`` alike. An error due to an argument of the wrong type names the argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from glidemq_orchestrate.clients.outage import Outage
from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.foundation.arguments import EXPLAINABLE, explain
from glidemq_orchestrate.foundation.durations import Duration
from glidemq_orchestrate.wire.call import Op

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
O = TypeVar("O")  # noqa: E741  operations
O_co = TypeVar("O_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


Survives: TypeAlias = Callable[[O, Duration | None], Outage]


class Blocking(Protocol[O_co]):
    """A client with blocking calls, and its operations."""

    @property
    def _operations(self) -> O_co: ...

    def _run(self, op: Op[T]) -> T: ...


class Awaiting(Protocol[O_co]):
    """A client with awaitable calls, and its operations."""

    @property
    def _operations(self) -> O_co: ...

    async def _run(self, op: Op[T]) -> T: ...


class Stream(Protocol[T_co]):
    """Items that are read step by step."""

    def step(self) -> Op[Sequence[T_co]] | None:
        """The operation that reads the next items; None at the end."""

    def end(self) -> Op[None] | None:
        """The cleanup after the last read, if any; its failure is ignored."""


def blocking(make: Callable[Concatenate[O, P], Op[T]]) -> Callable[Concatenate[Blocking[O], P], T]:
    """The blocking method of an operation."""

    def call(self: Blocking[O], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self._run(make(self._operations, *args, **kwargs))
        except EXPLAINABLE as exc:
            _explain(exc, make, self, args, kwargs)
            raise

    return _like(call, make)


def awaited(
    make: Callable[Concatenate[O, P], Op[T]],
) -> Callable[Concatenate[Awaiting[O], P], Coroutine[Any, Any, T]]:
    """``blocking`` for the awaitable twin."""

    async def call(self: Awaiting[O], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._run(make(self._operations, *args, **kwargs))
        except EXPLAINABLE as exc:
            _explain(exc, make, self, args, kwargs)
            raise

    return _like(call, make)


def blocking_through(
    make: Callable[Concatenate[O, P], Stream[T]], survives: Survives[O]
) -> Callable[Concatenate[Blocking[O], P], T]:
    """The blocking method that waits for the only item of a stream, also through outages.

    ``survives``: see ``streamed``.
    """

    def call(self: Blocking[O], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            stream = make(self._operations, *args, **kwargs)
            items = _items(self, stream, _outage(survives, self, kwargs))
            try:
                return next(items)
            finally:
                items.close()
        except EXPLAINABLE as exc:
            _explain(exc, make, self, args, kwargs)
            raise

    return _like(call, make)


def awaited_through(
    make: Callable[Concatenate[O, P], Stream[T]], survives: Survives[O]
) -> Callable[Concatenate[Awaiting[O], P], Coroutine[Any, Any, T]]:
    """``blocking_through`` for the awaitable twin."""

    async def call(self: Awaiting[O], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            stream = make(self._operations, *args, **kwargs)
            items = _items_async(self, stream, _outage(survives, self, kwargs))
            try:
                return await anext(items)
            finally:
                await items.aclose()
        except EXPLAINABLE as exc:
            _explain(exc, make, self, args, kwargs)
            raise

    return _like(call, make)


def blocking_into(
    make: Callable[Concatenate[O, P], Op[T]], into: Callable[[Any, T], U]
) -> Callable[Concatenate[Blocking[O], P], U]:
    """The blocking method that converts the result with ``into(client, result)``."""

    def call(self: Blocking[O], /, *args: P.args, **kwargs: P.kwargs) -> U:
        try:
            return into(self, self._run(make(self._operations, *args, **kwargs)))
        except EXPLAINABLE as exc:
            _explain(exc, make, self, args, kwargs)
            raise

    return _like(call, make, into)


def awaited_into(
    make: Callable[Concatenate[O, P], Op[T]], into: Callable[[Any, T], U]
) -> Callable[Concatenate[Awaiting[O], P], Coroutine[Any, Any, U]]:
    """``blocking_into`` for the awaitable twin."""

    async def call(self: Awaiting[O], /, *args: P.args, **kwargs: P.kwargs) -> U:
        try:
            return into(self, await self._run(make(self._operations, *args, **kwargs)))
        except EXPLAINABLE as exc:
            _explain(exc, make, self, args, kwargs)
            raise

    return _like(call, make, into)


def streamed(
    make: Callable[Concatenate[O, P], Stream[T]], *, survives: Survives[O] | None = None
) -> Callable[Concatenate[Blocking[O], P], Iterator[T]]:
    """The method that yields the items of a stream; the call itself checks the arguments.

    ``survives`` makes an ``Outage`` for the argument ``timeout``; None: an outage ends the reading.
    """

    def call(self: Blocking[O], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            stream = make(self._operations, *args, **kwargs)
            return _items(self, stream, _outage(survives, self, kwargs))
        except EXPLAINABLE as exc:
            _explain(exc, make, self, args, kwargs)
            raise

    return _like(call, make, Iterator)


def streamed_async(
    make: Callable[Concatenate[O, P], Stream[T]], *, survives: Survives[O] | None = None
) -> Callable[Concatenate[Awaiting[O], P], AsyncIterator[T]]:
    """``streamed`` for ``async for``."""

    def call(self: Awaiting[O], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        try:
            stream = make(self._operations, *args, **kwargs)
            return _items_async(self, stream, _outage(survives, self, kwargs))
        except EXPLAINABLE as exc:
            _explain(exc, make, self, args, kwargs)
            raise

    return _like(call, make, AsyncIterator)


def _outage(survives: Survives[O] | None, client: Any, kwargs: Mapping[str, Any]) -> Outage | None:
    if survives is None:
        return None
    outage = survives(client._operations, kwargs.get("timeout"))  # noqa: SLF001  the method of a client
    return outage.end_with(client._closings)  # noqa: SLF001  the method of a client


def _items(client: Blocking[Any], stream: Stream[T], outage: Outage | None) -> Generator[T, None, None]:
    try:
        while (op := stream.step()) is not None:
            try:
                items = client._run(op)  # noqa: SLF001  the method of a client
            except TransportError as exc:
                if outage is None:
                    raise
                outage.wait(exc)
                continue
            if outage is not None:
                outage.over()
            yield from items
    finally:
        _end(client, stream.end())


async def _items_async(
    client: Awaiting[Any], stream: Stream[T], outage: Outage | None
) -> AsyncGenerator[T, None]:
    try:
        while (op := stream.step()) is not None:
            try:
                items = await client._run(op)  # noqa: SLF001  the method of a client
            except TransportError as exc:
                if outage is None:
                    raise
                await outage.wait_async(exc)
                continue
            if outage is not None:
                outage.over()
            for item in items:
                yield item
    finally:
        await _end_async(client, stream.end())


def _end(client: Blocking[Any], op: Op[None] | None) -> None:
    if op is not None:
        with suppress(GlideMQError):
            client._run(op)  # noqa: SLF001  the method of a client


async def _end_async(client: Awaiting[Any], op: Op[None] | None) -> None:
    if op is not None:
        with suppress(GlideMQError):
            await client._run(op)  # noqa: SLF001  the method of a client


def _explain(
    exc: Exception, make: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise a clearer error if the arguments of a method are the cause."""
    inner = exc.__traceback__ and exc.__traceback__.tb_next
    if inner is not None and hasattr(make, "__wrapped__"):
        inner = inner.tb_next
    if isinstance(exc, TypeError) and inner is None:
        # They do not fit: the operation has not begun.
        method = f"{type(client).__name__}.{make.__name__}"
        raise TypeError(str(exc).replace(make.__qualname__, method)) from None
    explain(exc, make, (client, *args), kwargs)


C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


def with_operations(kind: C) -> C:
    """Name the methods that a class makes from operations after the class."""
    for name, method in vars(kind).items():
        if inspect.isfunction(method) and hasattr(method, "__wrapped__"):
            method.__qualname__ = f"{kind.__qualname__}.{name}"
    return kind


def _like(call: F, make: Callable[..., Any], into: object = None) -> F:
    """The method with the name, docstring and parameters of the operation."""
    functools.update_wrapper(call, make)
    signature = inspect.signature(make)
    returned = into.__name__ if isinstance(into, type) else _result(str(signature.return_annotation))
    call.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]  # inspect's
    call.__annotations__ = {**make.__annotations__, "return": returned}
    return call


def _result(annotation: str) -> str:
    """The return annotation of the method, from that of its operation."""
    while annotation.startswith(("Op[", "Once[")):
        annotation = annotation.partition("[")[2][:-1]
    return annotation
