"""Builds every Valkey key; no other Python file does. mypy checks the names passed to ``QueueKeys.key``.

All keys of one queue share the hash tag ``{queue}`` and so one cluster slot. Key names up to ``job`` are
glide-mq's; names below ``gmo:`` and ``qx:`` are ours.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from binascii import crc_hqx
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from glidemq_orchestrate.errors import (
    ConfigurationError,
    InvalidJob,
)
from glidemq_orchestrate.foundation.texts import shown
from glidemq_orchestrate.foundation.values import FLOW_ID, JOB_ID, MAX_NAME, QUEUE, SUBSCRIPTION

DEFAULT_PREFIX = "glide"
GROUP = "workers"
SLOTS = 16384

_READABLE = re.compile(r"[A-Za-z0-9_.\-]{1,120}\Z")
_HASHED = re.compile(r"gmo-[0-9a-f]+\Z")
_GENERATION = re.compile(r"(.+)\{([1-9][0-9]{0,8})\.([0-9a-f]{8})\}\Z", re.DOTALL)
TABLES_OF_FLOWS: Final = (
    "nodes", "order", "open", "ready", "roots", "failed", "again", "giving", "staying", "passed", "blocked",
    "notifying", "growing", "carried", "owners",
)  # fmt: skip
"""The suffixes of the keys of a flow's tables, after the key of its record, as in ``retain.lua``."""
_NO_FLOW_ID = re.compile(rf":({'|'.join(TABLES_OF_FLOWS)})\Z")


KeyName = Literal[
    "id", "meta", "stream", "scheduled", "priority", "lifo", "list-active", "suspended", "ratelimited",
    "rate", "completed", "failed", "events", "ordering", "dedup", "metrics:completed", "metrics:failed",
    "schedulers", "schedulers:lock:__tick__",
    "gmo:schedulers", "gmo:schedulers:due", "gmo:schedulers:last", "gmo:schedulers:finished",
    "gmo:schedulers:paused",
    "gmo:due", "gmo:owners", "gmo:todo", "gmo:staging",
    "gmo:letters", "gmo:portable", "gmo:portable:leaving", "gmo:portable:expiring", "gmo:priorities",
    "gmo:dedup", "gmo:ordering", "gmo:published", "gmo:shards", "qx:tags", "qx:tracked",
]  # fmt: skip
"""The keys that a queue has once each. Those with ``gmo:`` or ``qx:`` are ours, the others glide-mq's."""


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue below a prefix."""

    prefix: str
    queue: str

    @property
    def base(self) -> str:
        """``prefix:{queue}``, the start of every key of the queue."""
        return f"{self.prefix}:{{{self.queue}}}"

    def key(self, name: KeyName) -> str:
        """The key called ``name``."""
        return f"{self.base}:{name}"

    def keys(self, *names: KeyName) -> list[str]:
        """The keys of these names, in their order."""
        return [f"{self.base}:{name}" for name in names]

    def metrics(self, state: str) -> str:
        """The counters of jobs that ended in a state."""
        return f"{self.base}:metrics:{state}"

    def group(self, ordering_key: str) -> str:
        """The hash of the jobs that share an ordering key."""
        return f"{self.base}:group:{ordering_key}"

    def parked(self, ordering_key: str) -> str:
        """The sorted set of the jobs that wait for a slot of their ordering key."""
        return f"{self.base}:groupq:{ordering_key}"

    def budget(self, root_id: str) -> str:
        """The hash of the budget that a job sets for its descendants."""
        return f"{self.base}:budget:{root_id}"

    def usage(self, minute: int) -> str:
        """The hash with the usage of one minute."""
        return f"{self.base}:usage:{minute}"

    def statistics(self, day: int) -> str:
        """The hash with the statistics of one day since the epoch."""
        return f"{self.base}:qx:statistics:{day}"

    def recent_statistics(self, hour: int) -> str:
        """The hash with the statistics of one hour since the epoch."""
        return f"{self.base}:qx:recent:{hour}"

    def tokens(self, window: int) -> str:
        """The number of tokens used in one window of the token limit."""
        return f"{self.base}:tpm:{window}"

    def job(self, job_id: str) -> str:
        """The hash of one job."""
        return f"{self.base}:job:{job_id}"

    def log(self, job_id: str) -> str:
        """The list of log lines of one job."""
        return f"{self.base}:log:{job_id}"

    def array(self, job_id: str) -> str:
        """The state of one array; the keys of its elements start with it."""
        return f"{self.base}:gmo:array:{job_id}"

    def output(self, job_id: str) -> str:
        """The stream of the output that one job writes while it runs."""
        return f"{self.base}:jstream:{job_id}"

    def messages(self, job_id: str) -> str:
        """The stream of the messages of the attempts of one job, with a time to live."""
        return f"{self.base}:gmo:messages:{job_id}"

    def tag(self, tag: str) -> str:
        """The sorted set of the jobs with a tag, by the time when they got it."""
        return f"{self.base}:qx:tag:{tag}"

    def deps(self, job_id: str) -> str:
        """The set of the jobs that one job waits for."""
        return f"{self.base}:deps:{job_id}"

    def parents(self, job_id: str) -> str:
        """The set of additional jobs that wait for one job."""
        return f"{self.base}:parents:{job_id}"

    def signals(self, job_id: str) -> str:
        """The list of the signals sent to one job."""
        return f"{self.base}:signals:{job_id}"

    def worker(self, worker_id: str) -> str:
        """The registration of one worker, with a time to live."""
        return f"{self.base}:w:{worker_id}"

    def workers(self) -> str:
        """Sorted set of our live workers: worker ids, scored by when they expire without a heartbeat."""
        return f"{self.base}:gmo:workers"

    def flow(self, flow_id: str) -> str:
        """The record of one flow whose home is this queue; the keys of its tables start with it."""
        return f"{self.base}:gmo:flow:{flow_id}"

    def generations(self, flow_id: str) -> str:
        """The stream of the generations of a flow; absent while it has only one."""
        return f"{self.base}:gmo:generations:{read_generation(flow_id)[0]}"

    def flows(self) -> str:
        """The index of the flows whose home is this queue; those by state and by label start with it."""
        return f"{self.base}:gmo:flows"

    def portable_policies(self, flow_id: str) -> str:
        """The policies of the nodes of a portable flow. No other flow id yields this key."""
        return f"{self.base}:gmo:portable:policies:{flow_id}"

    def portable_waiting(self, flow_id: str) -> str:
        """The hash with the time since when each node of a portable flow waits for a worker."""
        return f"{self.base}:gmo:portable:waiting:{flow_id}"

    def portable_notes(self, flow_id: str) -> str:
        """The nodes that the next round of a portable flow reruns or ends by hand."""
        return f"{self.base}:gmo:portable:notes:{flow_id}"

    def growth(self, growth_id: str) -> str:
        """The nodes staged to be added to a flow whose home is this queue."""
        return f"{self.base}:gmo:grow:{growth_id}"

    def supervisor(self) -> str:
        """The lock of the supervisor of this queue: a token, with a time to live."""
        return f"{self.base}:gmo:supervisor"

    def supervised(self) -> str:
        """The progress of the supervisors of this queue: a hash."""
        return f"{self.base}:gmo:supervised"

    def beside(self) -> str:
        """The set of the queues that share flows with this one, where either queue is the home."""
        return f"{self.base}:gmo:beside"


def slot_of(key: str) -> int:
    """The cluster slot of a key."""
    _, _, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return crc_hqx((tag if tag and end else key).encode(), 0) % SLOTS


def flow_home(prefix: str, flow_id: str) -> str:
    """The key with the home queue of a flow, for all its generations; it outlives the flow."""
    return f"{prefix}:gmo:home:{{{read_generation(flow_id)[0]}}}"


def generation_id(flow_id: str, number: int, origin: str) -> str:
    """The id under which a generation of a flow is stored; for number 0 the id of the flow itself.

    ``origin`` identifies the content and the caller. A caller who repeats a beginning gets the same id; two
    callers who begin the same number differently stage apart. No user's flow id contains a brace.
    """
    if not number:
        return flow_id
    return f"{flow_id}{{{number}.{hashlib.sha256(origin.encode()).hexdigest()[:8]}}}"


def read_generation(stored: str) -> tuple[str, int]:
    """The flow id and the generation number of a stored id."""
    found = _GENERATION.match(stored) if stored.endswith("}") else None
    return (found[1], int(found[2])) if found else (stored, 0)


def queues_with_usage(prefix: str) -> str:
    """The set of the queues with recorded usage."""
    return f"{prefix}:usage:queues"


def flow_homes(prefix: str) -> str:
    """The set of the queues that are the home of a flow."""
    return f"{prefix}:gmo:homes"


def doctors_key(prefix: str) -> str:
    """The key on which ``glidemq doctor`` checks the rights of the user."""
    return f"{prefix}:gmo:doctor"


def absent_key(prefix: str) -> str:
    """A fresh key that does not exist, for checking rights without any effect."""
    return f"{prefix}:gmo:absent:{secrets.token_hex(8)}"


def mark_key(prefix: str, key: str) -> str:
    """A key in the slot of another key, for ``gmo_mark``; it never exists after a call."""
    _, _, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return f"{prefix}:gmo:mark:{{{tag if tag and end else key}}}"


def check_queue_name(name: str) -> str:
    """Return the name if glide-mq accepts it: 1 to 256 characters, none of ``{ } :``.

    Raises:
        ConfigurationError: The name breaks a rule.
    """
    return QUEUE.check(name)


def check_subscription(name: str) -> str:
    """Return the name of a subscription if it is valid; the name of the workers' group is reserved.

    Raises:
        ConfigurationError: The name breaks a rule.
    """
    if not SUBSCRIPTION.check(name).strip():
        raise ConfigurationError("subscription must not be blank")
    if name == GROUP:
        raise ConfigurationError(
            f"subscription must not be {GROUP}: that is the consumer group of the workers"
        )
    return name


def is_queue_name(name: str) -> bool:
    """Whether ``check_queue_name`` accepts the name."""
    try:
        check_queue_name(name)
    except ConfigurationError:
        return False
    return True


def check_job_id(job_id: str) -> str:
    """Return the id if glide-mq accepts it: 1 to 256 characters, no control characters, none of ``{ } :``.

    ``||`` is refused too: glide-mq uses it to mark retries of broadcast messages.

    Raises:
        InvalidJob: The id breaks a rule.
    """
    if "||" in JOB_ID.check(job_id):
        raise InvalidJob(f"job id {shown(job_id)} is not valid: it may not contain ||")
    return job_id


def check_flow_id(flow_id: str) -> str:
    """Return the id if it is valid for a flow: 1 to 256 characters, no control characters, none of ``{ }``.

    Ids such as ``x:nodes`` are refused too: they are the names of the tables of flow ``x``.

    Raises:
        ConfigurationError: The id breaks a rule.
    """
    if _NO_FLOW_ID.search(FLOW_ID.check(flow_id)):
        raise ConfigurationError(
            f"flow id {shown(flow_id)} is not valid: it may not end in "
            + " ".join(f":{table}" for table in TABLES_OF_FLOWS)
        )
    return flow_id


def node_job_id(flow_id: str, node: str) -> str:
    """The job id of a node: always the same for the same flow and node.

    Readable (``nightly-2026-01-01~clean``, in generation 3 ``nightly-2026-01-01@3.0a1b2c3d~clean``) if both
    names consist of letters, digits and ``_ . -``. Otherwise a hash, since Airflow's run ids contain
    characters that are forbidden in job ids.
    """
    stem = _stem(flow_id)
    if stem and len(stem) + len(node) <= MAX_NAME and _READABLE.match(node):
        return stem + node
    return "gmo-" + hashlib.sha256(f"{flow_id}\x1f{node}".encode()).hexdigest()[:32]


@lru_cache(maxsize=256)  # the nodes of a flow follow each other
def _stem(flow_id: str) -> str:
    """The beginning of the readable job ids of a flow; '' if it has none."""
    generation = _GENERATION.match(flow_id) if flow_id.endswith("}") else None
    public, number = (generation[1], f"@{generation[2]}.{generation[3]}") if generation else (flow_id, "")
    return f"{public}{number}~" if _READABLE.match(public) else ""


def is_node_id(own_id: str, job_id: str) -> bool:
    """Whether an id seems to be that of a node in the same flow as ``own_id``.

    For a dependency whose job was removed. A child that a handler has added may be named in the same way.
    ``members.lua`` has the same rule.
    """
    if _HASHED.match(job_id):
        return True
    flow, is_readable, _ = own_id.rpartition("~")
    return job_id.startswith(f"{flow}~") if is_readable else "~" in job_id


def is_gate(ref: str) -> bool:
    """Whether a member of ``deps`` is a gate."""
    return "}:gmo-gate-" in ref


def read_member(member: str) -> list[tuple[QueueKeys, str]]:
    """Queue and id of ``prefix:{queue}:id``; empty for any other text."""
    base, _, job_id = member.rpartition(":")
    prefix, _, rest = base.rpartition(":{")
    return [(QueueKeys(prefix, rest[:-1]), job_id)] if prefix and rest.endswith("}") and job_id else []


def read_ref(prefix: str, ref: str) -> tuple[QueueKeys, str]:
    """Queue and job id of a member of ``deps`` or ``parents``; a gate is read like a missing job."""
    queue, _, job_id = ref.removeprefix(f"{prefix}:{{").partition("}:")
    return QueueKeys(prefix, queue), job_id
