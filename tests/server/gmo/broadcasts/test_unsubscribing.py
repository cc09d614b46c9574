"""A subscription that is removed holds nothing back and leaves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import Broadcast, BroadcastWorker
from glidemq_orchestrate.broadcasts import messages
from glidemq_orchestrate.errors import ConfigurationError
from tests.server.gmo.broadcasts.conftest import ETL, STREAM, News

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench


def test_a_subscription_that_is_removed_holds_nothing_back(news: News, bench: Bench) -> None:
    kept, gone = news.publish(), news.publish(remove_on_complete=True)
    news.handle("a")
    assert bench.hand.run(messages.unsubscribe(ETL, "b", bench)) is True
    assert (news.state(kept), news.state(gone)) == ("completed", "gone")
    assert bench.hand.run(messages.unsubscribe(ETL, "b", bench)) is False


def test_retries_of_a_removed_subscription_leave_the_stream(news: News, bench: Bench) -> None:
    for _ in range(2):
        news.publish(attempts=2, remove_on_complete=True)
    news.handle("b", "fail", 2, 10)
    bench.now += 10
    news.upkeep()
    assert bench.client.xlen(STREAM) == 4
    bench.hand.run(messages.unsubscribe(ETL, "b", bench))
    assert bench.client.xlen(STREAM) == 2
    news.handle("a")
    assert (news.keys(), bench.client.xlen(STREAM)) == ([], 0)


def test_a_retry_that_falls_due_after_the_removal_leaves_nothing(news: News, bench: Bench) -> None:
    news.publish(attempts=2, remove_on_complete=True)
    news.handle("b", "fail", 2, 10)
    bench.hand.run(messages.unsubscribe(ETL, "b", bench))
    news.handle("a")
    bench.now += 10
    news.upkeep()
    assert news.take("a") == []
    assert (news.keys(), bench.client.xlen(STREAM)) == ([], 0)
    assert bench.client.zcard(ETL.key("scheduled")) == 0


@pytest.mark.parametrize("most", [None, 1])
def test_a_message_that_waits_for_a_removed_subscription_ends(
    news: News, bench: Bench, most: int | None
) -> None:
    """Its retry falls due after its subscription was removed."""
    job_id = news.publish(attempts=2)
    news.handle("b", "fail", 2, 10)
    news.handle("a")
    if most:
        news.publish(most)
    bench.hand.run(messages.unsubscribe(ETL, "b", bench))
    bench.now += 10
    news.upkeep()
    news.handle("a")
    assert news.state(job_id) == ("gone" if most else "completed")


def test_the_workers_of_jobs_are_no_subscription(url: str) -> None:
    with Broadcast("etl", url) as news, pytest.raises(ConfigurationError, match="workers"):
        news.unsubscribe("workers")
    with pytest.raises(ConfigurationError, match="workers"):
        BroadcastWorker("etl", print, url, subscription="workers")
