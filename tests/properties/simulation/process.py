"""Processes and their tasks: programs that yield requests to the server, or wait."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from glidemq_orchestrate.wire.call import Batch, Call, Request


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait so many ms. ``on_news``: or until another process has written something."""

    ms: int
    on_news: bool = False


Program: TypeAlias = "Generator[Request | Sleep, Any, None]"


@dataclass(slots=True, eq=False)
class Task:
    """One program of a process.

    Attributes:
        name: For the trace.
        program: What it does.
        todo: The calls of its request that are still to be sent, by their number.
        replies: The replies so far, by number.
        wake: When it goes on, in ms; None while a request is under way.
        seen: The news that it knows; None when it does not wait for any.
        tries: How often the driver has repeated the request.
    """

    name: str
    program: Program
    request: Request | None = None
    todo: list[int] = field(default_factory=list)
    replies: dict[int, Any] = field(default_factory=dict)
    wake: int | None = 0
    seen: int | None = None
    tries: int = 0

    @property
    def calls(self) -> tuple[Call[Any], ...]:
        """The calls of the request under way."""
        return self.request.calls if isinstance(self.request, Batch) else (self.request,)  # type: ignore[return-value]

    def send(self, request: Request) -> None:
        """Begin a request, or begin it again."""
        self.request, self.wake, self.seen = request, None, None
        self.todo, self.replies = list(range(len(self.calls))), {}


@dataclass(slots=True, eq=False)
class Process:
    """A process: it lives, stands still or dies as a whole.

    Attributes:
        name: For the trace.
        tasks: Its programs.
        weight: How often it is chosen, next to the others.
        still_until: It stands still until then, in ms.
        again: Begins its successor after a kill; None: nobody does.
        is_alive: It was not killed, and has not ended.
    """

    name: str
    weight: float = 1.0
    tasks: list[Task] = field(default_factory=list)
    still_until: int = 0
    again: Callable[[], None] | None = None
    is_alive: bool = True

    def start(self, name: str, program: Program) -> Task:
        """Start a program in it."""
        task = Task(f"{self.name}/{name}", program)
        self.tasks.append(task)
        return task

    def end(self, task: Task) -> None:
        """End one of its programs, wherever it is."""
        task.program.close()
        if task in self.tasks:
            self.tasks.remove(task)

    def die(self) -> None:
        """End all of them at once."""
        self.is_alive = False
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.program.close()
