"""What an engine offers, and the simplest one, which works in this process."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")
First = TypeVar("First")
Second = TypeVar("Second")


class Handle(Generic[T]):
    """A result that may not be computed yet. It can be an argument of another piece of work."""

    def __init__(self, value: Any) -> None:
        self.value = value
        """What the engine knows it by."""


class Engine(Protocol):
    """Computes pieces of work, several at a time.

    A function is one of a module, because another process finds it by its name. A piece of work whose process dies is
    computed again, so it may depend on its arguments only.
    """

    num_workers: int

    def share(self, value: T) -> Handle[T]:
        """Keeps a value for all workers, so that it is sent to each machine once."""
        ...

    def submit(self, function: Callable[..., T], *arguments: object) -> Handle[T]:
        """Begins a piece of work; handles among the arguments become their values."""
        ...

    def submit_pair(
        self,
        function: Callable[..., tuple[First, Second]],
        *arguments: object,
    ) -> tuple[Handle[First], Handle[Second]]:
        """The same for a function of two results; one that nobody asks for stays where it was computed."""
        ...

    def result(self, handle: Handle[T]) -> T:
        """Waits for a result; raises what the function raised."""
        ...


class InProcess:
    """Computes everything at once in this process: what other engines must equal."""

    num_workers = 1

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def share(self, value: T) -> Handle[T]:
        return Handle(value)

    def submit(self, function: Callable[..., T], *arguments: object) -> Handle[T]:
        return Handle(function(*known_values(arguments)))

    def submit_pair(
        self,
        function: Callable[..., tuple[First, Second]],
        *arguments: object,
    ) -> tuple[Handle[First], Handle[Second]]:
        first, second = function(*known_values(arguments))
        return Handle(first), Handle(second)

    def result(self, handle: Handle[T]) -> T:
        return cast(T, handle.value)


def known_values(arguments: Iterable[object]) -> list[object]:
    """The arguments; in the place of a handle, what the engine knows it by."""
    known = []
    for argument in arguments:
        if isinstance(argument, Handle):
            argument = argument.value
        known.append(argument)
    return known


def ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """The items in order, taken `count` ahead: while the first is waited for, the next ones are already submitted."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


def window(engine: Engine) -> int:
    """How many pieces of work to submit ahead: enough that no worker waits, few enough that memory stays bounded."""
    return 2 * engine.num_workers
