"""The tags by which a step or a run says where and how it is queued. Pure; steps override their run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dagster_glidemq.durations import in_seconds
from glidemq_orchestrate import JobOptions, Ordering, RateLimit
from glidemq_orchestrate.errors import ConfigurationError, InvalidJob
from glidemq_orchestrate.foundation.durations import MILLISECOND
from glidemq_orchestrate.wire.keys import check_queue_name

QUEUE_TAG: Final = "dagster-glidemq/queue"
"""The queue of a step; in the tags of a run, of all its steps."""
RUN_QUEUE_TAG: Final = "dagster-glidemq/run_queue"
"""The queue of a run itself."""
JOB_TAG: Final = "dagster-glidemq/job_id"
"""The newest job of a run."""
PLACE_TAG: Final = "dagster-glidemq/job_queue"
"""The queue of that job."""
PRIORITY_TAG: Final = "dagster-glidemq/priority"
"""A whole number, higher first, as ``dagster/priority``, which counts where this one is missing."""
CONCURRENCY_KEY_TAG: Final = "dagster-glidemq/concurrency_key"
"""Steps with one key in one queue run one at a time, in the order in which they were queued."""
CONCURRENCY_LIMIT_TAG: Final = "dagster-glidemq/concurrency_limit"
"""How many of a key run at a time instead; the newest step of the key decides."""
RATE_LIMIT_TAG: Final = "dagster-glidemq/rate_limit"
"""``N/SECONDS``: at most so many steps of the key start in so many seconds."""
_TELL: Final = frozenset(
    f"dagster-glidemq/{name}"
    for name in (
        "event", "event_job_id", "flow", "flow_id", "generation", "job_id", "job_queue", "jobs", "kind",
        "state", "watched_queue",
    )
)  # fmt: skip
"""What sensors and the launcher tell of a run; no step is queued by them."""
_STEP_TAGS: Final = (QUEUE_TAG, PRIORITY_TAG, CONCURRENCY_KEY_TAG, CONCURRENCY_LIMIT_TAG, RATE_LIMIT_TAG)
DAGSTER_PRIORITY_TAG: Final = "dagster/priority"

HIGHEST: Final = 1_024
"""The highest priority that differs from others; 1 in glide-mq, where lower numbers run first."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how something is queued.

    Attributes:
        queue: The queue.
        options: Priority and ordering key; the rest is the default.
    """

    queue: str
    options: JobOptions


def place_of_step(step: Mapping[str, str], run: Mapping[str, str], queue: str) -> Placement:
    """Where a step is queued.

    Args:
        step: The tags of the step.
        run: The tags of its run, for what the step does not say.
        queue: The queue where neither says one.

    Raises:
        ConfigurationError: A tag of ours is not known, or has a value that it cannot have.
    """
    tags = {**_ours(run), **_ours(step)}
    if unknown := sorted(set(tags) - {*_STEP_TAGS, RUN_QUEUE_TAG} - _TELL):
        raise ConfigurationError(f"there is no tag {unknown[0]}; those of steps are {', '.join(_STEP_TAGS)}")
    ordering = _ordering(tags)
    priority = _priority(step) if _has_priority(step) else _priority(run)
    return _place(tags.get(QUEUE_TAG, queue), QUEUE_TAG, JobOptions(priority=priority, ordering=ordering))


def place_of_run(run: Mapping[str, str], queue: str) -> Placement:
    """Where a run is queued.

    Raises:
        ConfigurationError: As for ``place_of_step``.
    """
    return _place(run.get(RUN_QUEUE_TAG, queue), RUN_QUEUE_TAG, JobOptions(priority=_priority(run)))


def _place(queue: str, tag: str, options: JobOptions) -> Placement:
    try:
        return Placement(check_queue_name(queue), options)
    except ConfigurationError as exc:
        raise ConfigurationError(f"tag {tag}, or the queue of the config: {exc}") from exc


def _ours(tags: Mapping[str, str]) -> dict[str, str]:
    return {tag: value for tag, value in tags.items() if tag.startswith("dagster-glidemq/")}


def _has_priority(tags: Mapping[str, str]) -> bool:
    return PRIORITY_TAG in tags or DAGSTER_PRIORITY_TAG in tags


def _priority(tags: Mapping[str, str]) -> int:
    """The priority of glide-mq: 1 runs first, 0 after all others. Ours are higher first, and 0 is none."""
    tag = PRIORITY_TAG if PRIORITY_TAG in tags else DAGSTER_PRIORITY_TAG
    wanted = _whole(tags, tag, 0)
    return 0 if wanted <= 0 else max(HIGHEST + 1 - wanted, 1)


def _ordering(tags: Mapping[str, str]) -> Ordering | None:
    key = tags.get(CONCURRENCY_KEY_TAG)
    if key is None:
        for tag in (CONCURRENCY_LIMIT_TAG, RATE_LIMIT_TAG):
            if tag in tags:
                raise ConfigurationError(
                    f"tag {tag} limits the steps of a key: set {CONCURRENCY_KEY_TAG} too"
                )
        return None
    try:
        return Ordering(key, _whole(tags, CONCURRENCY_LIMIT_TAG, 1), _rate(tags.get(RATE_LIMIT_TAG)))
    except InvalidJob as exc:
        raise ConfigurationError(
            f"tags {CONCURRENCY_KEY_TAG}, {CONCURRENCY_LIMIT_TAG}, {RATE_LIMIT_TAG}: {exc}"
        ) from exc


def _rate(text: str | None) -> RateLimit | None:
    if text is None:
        return None
    count, _, span = text.partition("/")
    try:
        return RateLimit(int(count), in_seconds("the duration", span, min_=MILLISECOND))
    except ValueError as exc:
        raise ConfigurationError(
            f"tag {RATE_LIMIT_TAG} must be N/DURATION, such as 10/60 or 10/1m, got {text!r}"
        ) from exc


def _whole(tags: Mapping[str, str], tag: str, default: int) -> int:
    text = tags.get(tag)
    try:
        return default if text is None else int(text)
    except ValueError as exc:
        raise ConfigurationError(f"tag {tag} must be a whole number, got {text!r}") from exc
