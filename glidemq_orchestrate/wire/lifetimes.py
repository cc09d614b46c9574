"""Every key that the two libraries and the clients make: its content, who removes it, and when.

``docs/reference/keys.md`` is made from this table. One test compares it with a server after a slow
week, another one with the names of keys in ``lua/``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# name | type | holds | lives, with the bound for those of the queue | who removes it, and when. An indented
# line continues the row.
_TABLE: Final = """
# Jobs (glide-mq's)
id | string | the last id assigned | queue 1 | obliterate
job:<id> | hash | the job; fields of one run are removed by the next | job | its retention, clean, remove,
    drain, the retention of its flow
log:<id> | list | its last 10,000 log lines, up to 11,000 | job | with the job
deps:<id> | set | the jobs that it waits for | job | with the job
parents:<id> | set | the jobs of a graph that wait for it | job | with the job
jstream:<id> | stream | its output while it runs | job | with the job
signals:<id> | list | the signals sent to it | job | with the job
job:<id>:sub:<subscription> | hash | failed attempts of a message in a subscription | timed | a day after the
    last; when the message is handled or removed
job:<id>:usage-lock | string | a Node client writes its usage | timed | after 5 s
gmo:array:<id> | hash | the counts of an array node | job | with the job; a rerun after it completed
gmo:array:<id>:<part> | any | its items, and how its elements ended | job | the same; items: with the job
budget:<id> | hash | the budget of a flow of Node | job | with the job of its root
# Where jobs wait (glide-mq's)
stream | stream | ready jobs, and those that workers hold; messages of a broadcast | queue 0 | the call that
    ends or moves the job; messages: their retention, clean, max_messages
scheduled | sorted set | delayed jobs, and those with a priority | work | the call that finds them due;
    remove, drain, a cancel
priority | list | ready jobs with a priority | work | the fetch; remove, drain
lifo | list | ready LIFO jobs | work | the fetch; remove, drain
list-active | string | how many jobs from lists run | queue 1 | obliterate
suspended | sorted set | jobs that wait for a signal | work | the signal, their timeout; remove, a cancel
completed | sorted set | completed jobs | job | with each job
failed | sorted set | failed jobs | job | with each job; a retry
# Limits and order (glide-mq's)
ordering | hash | the last number of each ordering key | work | cleanup: within minutes once no job of the key
    waits or runs and none of its limits is used up
group:<key> | hash | limits and slots of an ordering key; a skip:<number> until its turn | work | with its
    field in ordering
groupq:<key> | sorted set | jobs blocked by their ordering key | work | the release of the key; remove
ratelimited | sorted set | rate-limited ordering keys | work | the call that finds them due
orderdone:pending:<key> | hash | ended numbers of jobs of old library versions | work | when all earlier
    numbers have ended
dedup | hash | deduplication ids with their last jobs | work | cleanup: seconds after the end of the window
    and of the job; if another library wrote it and the job was removed: after 30 days
rate | hash | starts in the window of the queue | queue 2 | obliterate
tpm:<window> | string | tokens used in a window | timed | after the window
# The queue (glide-mq's)
meta | hash | settings; orderdone:<key> of old library versions | user | the user who set them
events | stream | the last events | queue 1200 | trimmed to about 1,000
metrics:completed | hash | ends and durations by minute | queue 2900 | the first end of a later minute, and
    cleanup: after a day
metrics:failed | hash | the same for failures | queue 2900 | the same
schedulers | hash | repeating jobs | user | their end or limit, Schedules.remove
schedulers:lock:<name> | string | the client that fires them | timed | after 5 s
suspended:lock:<name> | string | a Node client checks timeouts | timed | after 5 s
w:<worker> | string | the registration of a worker | timed | a lease after its last heartbeat
usage:<minute> | hash | usage by minute | timed | after 30 days
<prefix>:usage:queues | set | queues that have usage | user | obliterate
# The queue (ours)
gmo:schedulers | hash | repeating jobs that only Python workers fire | user | their end or limit,
    Schedules.remove
gmo:schedulers:due | sorted set | when to check each schedule | user | with its schedule; if a Node client
    removes it: the next walk over all of them
gmo:schedulers:last | hash | the last job of each schedule | user | with its schedule
gmo:schedulers:finished | hash | schedules that have finished | user | Schedules.remove; upsert with another
    schedule; the next one that finishes: after a year, and beyond 10,000
gmo:schedulers:finished:at | sorted set | when they were written | user | the same
gmo:schedulers:paused | hash | schedules that are paused | user | Schedules.resume, Schedules.remove
gmo:priorities | sorted set | when the first job of each priority is due | work | the call that finds it due
gmo:due | sorted set | deadlines of flows, nodes and owners | work | the upkeep; the end of their subject
gmo:dedup | sorted set | when to check deduplication ids | work | with the field in dedup
gmo:ordering | string | the highest number of an ordering key that was removed | queue 1 | obliterate
gmo:letters | hash | failed jobs that have no dead letter yet | work | the upkeep that writes the letter, or
    finds that none is needed
gmo:published | sorted set | output of accepted attempts that readers may not see yet | timed | the Spark
    worker that created the version; each after a month; obliterate
gmo:leaving | sorted set | ended jobs to be removed once old enough, or once no longer needed by others | work
    | the upkeep that removes them
gmo:awaiting | sorted set | jobs that wait for their children, or for dependencies that rerun, and when to
    check these | work | the upkeep, at most some seconds after they no longer wait
gmo:kept:<state>:<count> | sorted set | the newest jobs with this retention count | user | the next job with
    this count
gmo:passed:<state> | string | up to which ended job all are needed | queue 1 | obliterate
gmo:list-held | sorted set | jobs from lists that our workers run | work | the end of the attempt; the reclaim
gmo:arrays | sorted set | open arrays, and when their elements can run | work | the end of the array; a cancel
gmo:array-priorities | sorted set | open arrays with a priority | work | the end of the array; a cancel
gmo:workers | sorted set | our live workers | work | their end; another one, a minute after the last heartbeat
gmo:supervisor | string | the leader | timed | after 6 s
gmo:supervised | hash | the progress of the supervisors | queue 12 | obliterate
gmo:shards | hash | how many shards it has, since when, and their limits | queue 20 | never: clients and
    workers rely on it
gmo:beside | set | queues that share flows with it | work | a supervisor of either, when neither is the home
    of a listed flow
gmo:large-events | list | sizes of large events | queue 2100 | trimmed with the events to 16 MiB
qx:statistics:<day> | hash | waiting and running times by handler, and failures | timed | after 31 days
qx:recent:<hour> | hash | waiting and running times by ten minutes, and failures | timed | after 26 hours
qx:tags | sorted set | how many jobs have each tag | job | with the last job of a tag; untag
qx:tag:<tag> | sorted set | the jobs with a tag | job | with each job; if another library removed it:
    cleanup, or the next listing; untag
qx:tracked | sorted set | tracked jobs and flows, 1,000 at most | job | untrack; cleanup, 30 days after
    tracking began, if the job or flow no longer exists
gmo:messages:<id> | stream | messages of the attempts of a job | timed | after the time that the handler's
    client set
# Flows (ours)
gmo:flow:<flow> | hash | the record | flow | the retention removes the tables; the record stays as a tombstone
    for 30 days
gmo:flow:<flow>:<table> | any | its tables of nodes and open work | flow | the retention; those of open work
    when it is done
gmo:generations:<flow> | stream | its generations, 100 at most | flow | with the record
gmo:notified:<id> | set | dependents that were notified of a node's end | work | when all were; with the node
gmo:flows | sorted set | the flows of this home | flow | the retention
gmo:flows:state:<state> | sorted set | the same by state | flow | the retention, the next state
gmo:flows:label:<label> | sorted set | the same by label | flow | the retention
gmo:staging | sorted set | flows that are being submitted | work | their start; the sweep, 15 minutes after
    the last chunk
gmo:expiring | sorted set | flows with a running retention or tombstone | flow | the sweep, at its end
gmo:todo | set | flows with open work | work | the upkeep
gmo:growing | sorted set | nodes that are being added | work | when they join; the sweep, 15 minutes after the
    last chunk
gmo:grow:<growth> | any | these nodes and their edges | work | the same
gmo:owners | sorted set | owners of running flows | work | the end of their last flow, or of their lease; of
    portable flows: cleanup, 14 days after their last renewal
gmo:owned:<lease> | set | the flows of an owner | work | the same
gmo:portable | sorted set | portable flows to be advanced | work | their end
gmo:portable:leaving | sorted set | portable flows that a client takes off that list | work | its last step;
    the sweep, after a minute
gmo:portable:expiring | sorted set | portable flows with a running retention or tombstone | flow | the sweep,
    at its end
gmo:portable:policies:<flow> | hash | policies of the nodes of a portable flow | flow | the retention
gmo:portable:waiting:<flow> | hash | the time since when its nodes wait for a worker | flow | their start; the
    retention
gmo:portable:notes:<flow> | hash | nodes that its next round reruns or ends | flow | that round; the retention
<prefix>:gmo:home:{<flow>} | string | the home of a flow | flow | with the tombstone; without a retention
    never
<prefix>:gmo:homes | set | queues that are the home of a flow | flow | the sweep, after the last flow
<prefix>:gmo:doctor | string | a check of rights | timed | after a minute
"""


class Lives(StrEnum):
    """How long a key lives."""

    QUEUE = "queue"
    """As long as the queue: until ``obliterate``. It does not grow: see ``max_elements``."""
    WORK = "work"
    """As long as its subject waits, runs or is due."""
    JOB = "job"
    """As long as its job."""
    FLOW = "flow"
    """As long as its flow, and then as a tombstone with a time to live."""
    USER = "user"
    """Until the user who named it removes it."""
    TIMED = "timed"
    """It has a time to live."""


@dataclass(frozen=True, slots=True)
class KeyLife:
    """One pattern of keys.

    Attributes:
        name: The part after ``<prefix>:{<queue>}:``, unless it begins with ``<prefix>``. ``<x>`` is any text.
        kind: The type of the value.
        holds: What it holds.
        lives: How long it lives.
        removed: Who removes its content, and when.
        max_elements: The limit while nothing waits or runs; only for ``Lives.QUEUE``.
    """

    name: str
    kind: str
    holds: str
    lives: Lives
    removed: str
    max_elements: int | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches whole keys, with any prefix and queue."""
        own = self.name.startswith("<prefix>")
        text = "".join(
            ".+" if part.startswith("<") else re.escape(part) for part in re.split(r"(<\w+>)", self.name)
        )
        return re.compile(text if own else r"[^{}]*:\{[^{}]*\}:" + text, re.DOTALL)


def lives() -> Iterator[tuple[str, tuple[KeyLife, ...]]]:
    """The parts of the table, each with its heading."""
    for part in _TABLE.replace("\n    ", " ").strip().split("# ")[1:]:
        heading, *rows = part.strip().splitlines()
        yield heading, tuple(_row(row) for row in rows)


def _row(text: str) -> KeyLife:
    name, kind, holds, life, removed = text.split(" | ")
    word, _, max_elements = life.partition(" ")
    return KeyLife(name, kind, holds, Lives(word), removed, int(max_elements) if max_elements else None)


def life_of(key: str) -> KeyLife | None:
    """The row of a key; None if the table has none."""
    return next((row for pattern, row in _patterns() if pattern.fullmatch(key)), None)


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], KeyLife], ...]:
    """The rows with their patterns, the most specific first."""
    rows = [row for _, part in lives() for row in part]
    rows.sort(key=lambda row: -len(re.sub(r"<\w+>", "", row.name)))
    return tuple((row.pattern, row) for row in rows)


_WORDS: Final = {
    Lives.QUEUE: "the queue",
    Lives.WORK: "its subject",
    Lives.JOB: "the job",
    Lives.FLOW: "the flow",
    Lives.USER: "until it is removed",
    Lives.TIMED: "a time to live",
}


def page() -> str:
    """``docs/reference/keys.md``."""
    lines = [
        "# Every key, and who removes it",
        "",
        "Made by `make tables` from the table in `glidemq_orchestrate/wire/lifetimes.py`; a test compares it",
        "with a server after a slow week of simulated time. Names follow `<prefix>:{<queue>}:`, unless",
        "they begin with `<prefix>`.",
        "",
        "Jobs without a retention, and messages of broadcasts without `max_messages`, remain until they are",
        "cleaned; flows without a retention remain with their jobs. All else is removed as listed, while",
        "one of our workers or supervisors serves the queue: they run upkeep, sweep and cleanup.",
        "",
    ]
    for heading, rows in lives():
        lines += [f"## {heading}", "", "| key | type | holds | lives as long as | removed by, and when |"]
        lines += ["|---|---|---|---|---|"]
        for row in rows:
            max_elements = f", at most {row.max_elements:,} elements" if row.max_elements else ""
            cells = (f"`{row.name}`", row.kind, row.holds, _WORDS[row.lives] + max_elements, row.removed)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"
