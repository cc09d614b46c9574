"""Decides which call is next, what breaks, and how much time passes; each decision is a draw of the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate.attempts.supervision import LOCK_TTL_MS
from glidemq_orchestrate.errors import ConnectionFailed, GlideMQError, OutcomeUnknown
from glidemq_orchestrate.io.delivery import PAUSES
from glidemq_orchestrate.io.slots import target
from glidemq_orchestrate.wire.call import Batch, Call, Op
from tests.properties.simulation.choices import Choices
from tests.properties.simulation.plan import Faults
from tests.properties.simulation.process import Process, Sleep, Task
from tests.properties.simulation.store import Store

START_MS: Final = 1_700_000_000_000
NO_FAULTS: Final = Faults()
# What others may be waiting for.
_NEWS: Final = frozenset(
    {
        "gmo_finish_and_fetch",
        "gmo_start_flow",
        "gmo_advance_flow",
        "gmo_expire_due",
        "gmo_reclaim",
        "gmo_cancel_flow",
        "gmo_retry_flow",
        "gmo_begin_generation",
        "gmo_put_back",
        "gmo_check_open",
        "gmo_notify_again",
        "glidemq_completeChild",
        "glidemq_promote",
    }
)


def may_be_late(call: Call[Any]) -> bool:
    """Whether a call may arrive after later calls of others, and do no harm.

    Functions check what they find. Of plain commands only those promise it that write once: a list that is
    written by two clients at the same moment, one of them dead, may keep the older word.
    """
    return call.words[0] in ("FCALL", "HSETNX")


@dataclass(slots=True)
class Doom:
    """A process that dies at a certain call.

    Attributes:
        task: The start of the name of a task.
        at: Its process dies at so many calls of that task.
        arrives: That call arrives.
        seen: How many calls of it there were.
    """

    task: str
    at: int
    arrives: bool
    seen: int = 0


class Stuck(Exception):
    """The processes do not come to the expected state within the steps or the time they have."""


@dataclass(slots=True)
class Scheduler:
    """The world: one server, a clock, processes.

    Attributes:
        store: The server.
        choices: The seed.
        is_cluster: The calls of a batch go to the servers of their slots, each at its own pace.
        lock_ms: The length of a lease; what stands still does so for longer.
        faults: What breaks now.
        doom: Who dies when.
        now: The time in ms.
        processes: Those that live.
        problems: Errors that nobody expects.
        steps: How many calls were made.
        disturbed_ms: For how long, at most, faults kept everybody from working.
    """

    store: Store
    choices: Choices
    is_cluster: bool
    lock_ms: int
    faults: Faults = NO_FAULTS
    doom: Doom | None = None
    now: int = START_MS
    processes: list[Process] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    steps: int = 0
    disturbed_ms: int = 0
    _news: int = 0
    _due: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    _late: list[tuple[str, Call[Any]]] = field(default_factory=list)

    # --- the clock of the operations ---

    def now_ms(self) -> int:
        """The time, for everybody."""
        return self.now

    def monotonic_ms(self) -> int:
        """The time, for everybody."""
        return self.now

    # --- processes ---

    def begin(self, process: Process) -> Process:
        """Let a process run."""
        self.processes.append(process)
        return process

    def after(self, ms: int, do: Callable[[], None]) -> None:
        """Do something at a later time."""
        self._due.append((self.now + ms, do))

    @property
    def is_anything_due(self) -> bool:
        """Whether something is still to be done at a later time."""
        return bool(self._due)

    def wake(self, task: Task) -> None:
        """Let a waiting task go on now."""
        if task.wake is not None:
            task.wake = self.now

    def run(self, op: Op[Any]) -> Any:
        """Run an operation to its end while everybody else stands still; nothing breaks."""
        return self.store.run(op, self.now)

    def go(self, is_over: Callable[[], bool], *, steps: int, ms: int) -> None:
        """Run until it is over, which is asked before time passes.

        Raises:
            Stuck: It is not over after so many steps or ms.
        """
        most, until = self.steps + steps, self.now + ms
        while not self.problems:
            ready = self._ready()
            if not ready:
                if is_over():
                    return
                self._let_time_pass()
            else:
                self._step(ready)
            if self.steps > most or self.now > until:
                raise Stuck(f"not over after {self.steps} steps at {self.now - START_MS} ms")

    def calm(self) -> None:
        """Let nothing break any more: whoever stands still goes on, and what was lost on its way arrives."""
        self.faults = NO_FAULTS
        for process in self.processes:
            process.still_until = min(process.still_until, self.now)
        while self._late:
            self._deliver_late()

    # --- one step ---

    def _ready(self) -> list[tuple[Process, Task]]:
        for due, do in [one for one in self._due if one[0] <= self.now]:
            self._due.remove((due, do))
            do()
        self.processes = [one for one in self.processes if one.is_alive and one.tasks]
        return [
            (process, task)
            for process in self.processes
            if process.still_until <= self.now
            for task in process.tasks
            if task.wake is None
            or task.wake <= self.now
            or (task.seen is not None and task.seen < self._news)
        ]

    def _let_time_pass(self) -> None:
        moments = [due for due, _ in self._due]
        for process in self.processes:
            if process.still_until > self.now:
                moments.append(process.still_until)
            else:
                moments += [task.wake for task in process.tasks if task.wake is not None]
        if not moments:
            raise Stuck("nobody has anything to do")
        self.now = max(self.now, min(moments))
        self.choices.note(f"+{self.now - START_MS} ms")

    def _step(self, ready: list[tuple[Process, Task]]) -> None:
        if self._late and self.choices.chance(0.1):
            self._deliver_late()
            return
        if self.faults.jump and self.choices.chance(self.faults.jump):
            self.jump(self.choices.pick([1, 30, self.lock_ms // 2, self.lock_ms + 1, 5 * self.lock_ms]))
            self.choices.note(f"time jumps to +{self.now - START_MS} ms")
            return
        if self.choices.chance(0.03):
            self.now += self.choices.between(1, 5)
        process, task = self.choices.weighted(ready, [one.weight for one, _ in ready])
        if task.wake is not None:
            self._resume(process, task, None)
        else:
            self._send(process, task)

    def jump(self, ms: int) -> None:
        """Let time pass at once, for everybody."""
        self.now += ms
        self.disturbed_ms += ms

    def _send(self, process: Process, task: Task) -> None:
        """Send one call of the task's request, or let something break."""
        number = self._next_call(task)
        call = task.calls[number]
        self.steps += 1
        if self._breaks(process, task, call):
            return
        self.choices.note(f"{task.name} {call.place}")
        task.todo.remove(number)
        task.replies[number] = self._answer(call)
        if not task.todo:
            self._reply(process, task)

    def _next_call(self, task: Task) -> int:
        """The next call: in order, or in a cluster the first for any of the servers."""
        if not self.is_cluster or len(task.todo) == 1:
            return task.todo[0]
        heads: dict[Any, int] = {}
        for number in task.todo:
            heads.setdefault(self._server(task.calls[number]), number)
        return self.choices.pick(list(heads.values()))

    def _answer(self, call: Call[Any]) -> Any:
        reply = self.store.answer(call, self.now)
        if call.words[0] == "FCALL" and call.words[1] in _NEWS:
            quiet = call.words[1] == "gmo_finish_and_fetch" and len(call.words) <= 14  # no outcome
            self._news += not quiet
        return reply

    def _reply(self, process: Process, task: Task) -> None:
        """Resume the task with the replies to its request."""
        replies = [task.replies[number] for number in range(len(task.calls))]
        task.tries = 0
        if isinstance(task.request, Batch):
            self._resume(process, task, replies)
        elif isinstance(replies[0], GlideMQError):
            self._raise(process, task, replies[0])
        else:
            self._resume(process, task, replies[0])

    # --- what breaks ---

    def _breaks(self, process: Process, task: Task, call: Call[Any]) -> bool:
        faults, chance = self.faults, self.choices.chance
        if self.doom is not None and task.name.startswith(self.doom.task):
            self.doom.seen += 1
            if self.doom.seen == self.doom.at:
                self._break(task, f"{process.name} is killed", how="all" if self.doom.arrives else "none")
                self.kill(process)
                return True
        if faults.lose and chance(faults.lose):
            self._lose(process, task)
        elif faults.kill and chance(faults.kill):
            self._kill(process, task)
        elif faults.pause and chance(faults.pause):
            ms = self.choices.pick([self.lock_ms // 2, self.lock_ms + 100, 4 * self.lock_ms])
            process.still_until = self.now + ms
            self.disturbed_ms += ms + LOCK_TTL_MS
            self.choices.note(f"{process.name} stands still for {ms} ms before {call.place}")
        else:
            return False
        return True

    def _lose(self, process: Process, task: Task) -> None:
        """The connection breaks: what is left of the request arrives, now or late, or does not."""
        self.disturbed_ms += 2_000
        is_untouched = len(task.todo) == len(task.calls)
        how = self._break(task, f"{task.name} loses its connection")
        if task.tries < len(PAUSES) and all(one.repeatable for one in task.calls):
            task.tries += 1
            assert task.request is not None
            task.send(task.request)
            return
        task.tries = 0
        is_unsent = is_untouched and how == "none" and self.choices.chance(0.5)
        error = ConnectionFailed if is_unsent else OutcomeUnknown
        self._raise(process, task, error("the simulated connection broke"))

    def _kill(self, process: Process, task: Task) -> None:
        """The process dies: what is left of its request arrives, now or late, or does not."""
        self._break(task, f"{process.name} is killed in {task.name}")
        self.kill(process)

    def _break(self, task: Task, what: str, how: str = "") -> str:
        """Decide which calls of a request still arrive, and how: all, late or none.

        Small batches arrive as a whole: if one call to a server has, so do the others.
        """
        how = how or self.choices.pick(["none", "all", "late"])
        left = [task.calls[number] for number in task.todo]
        if how == "late" and not all(map(may_be_late, left)):
            how = "all"
        arrived = {self._server(task.calls[number]) for number in task.replies}
        for call in left:
            if how == "all" or self._server(call) in arrived:
                self._answer(call)
            elif how == "late":
                self._late.append((task.name, call))
        self.choices.note(f"{what}; {how} of {len(left)} calls arrive")
        return how

    def _server(self, call: Call[Any]) -> Any:
        """The server of a call: of its slot in a cluster, else the only one."""
        return target(call.words) if self.is_cluster else None

    def kill(self, process: Process) -> None:
        """End a process; its successor begins after a while."""
        process.die()
        self.disturbed_ms += 2 * self.lock_ms + LOCK_TTL_MS
        if process.again is not None:
            self.after(self.choices.between(0, 2 * self.lock_ms), process.again)

    def _deliver_late(self) -> None:
        name, call = self._late.pop(0)
        self.choices.note(f"{call.place} of {name} arrives late")
        self._answer(call)

    # --- programs ---

    def _resume(self, process: Process, task: Task, value: Any) -> None:
        self._go_on(process, task, lambda: task.program.send(value))

    def _raise(self, process: Process, task: Task, error: GlideMQError) -> None:
        self.choices.note(f"{task.name} gets {type(error).__name__}")
        self._go_on(process, task, lambda: task.program.throw(error))

    def _go_on(self, process: Process, task: Task, advance: Callable[[], Any]) -> None:
        task.wake, task.seen = None, None
        try:
            request = advance()
        except StopIteration:
            process.end(task)
            return
        except GlideMQError as exc:
            self.problems.append(f"{task.name} ended with {type(exc).__name__}: {exc}")
            process.end(task)
            return
        if isinstance(request, Sleep):
            task.wake = self.now + request.ms
            task.seen = self._news if request.on_news else None
        else:
            task.send(request)
