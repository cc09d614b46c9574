"""What holds for a queue with shards on one server."""

from __future__ import annotations

import pytest

from glidemq_orchestrate import JobState, NewJob, Queue
from glidemq_orchestrate.errors import ConfigurationError, JobNotFound
from glidemq_orchestrate.jobs.option_values import JobRef
from glidemq_orchestrate.shards import shard_name


def test_a_child_in_another_queue_finds_its_parent_in_a_shard(url: str) -> None:
    with Queue("wide", url, shards=4) as wide, Queue("plain", url) as plain:
        parents = [wide.add("parent") for _ in range(4)]
        named = [NewJob("child", parent=JobRef("wide", parent)) for parent in parents]
        children = [plain.add("child", parent=JobRef("wide", parents[0])), *plain.add_many(named)]
        for child, parent in zip(children, [parents[0], *parents], strict=True):
            (found,) = plain.parents(str(child))
            assert (found.id, found.queue) == (parent, wide.get_job(parent).queue)
        with pytest.raises(JobNotFound):
            plain.add("child", parent=JobRef("wide", "none"))


def test_a_shard_has_no_shards(url: str) -> None:
    with (
        Queue(shard_name("wide", 1), url, shards=2) as shard,
        pytest.raises(ConfigurationError, match="a shard"),
    ):
        shard.counts()
    with Queue(shard_name("wide", 1), url) as shard:
        shard.add("a")
        assert shard.counts()[JobState.WAITING] == 1
