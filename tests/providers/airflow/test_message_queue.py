"""MessageQueueTrigger with the scheme glidemq, and assets of that scheme, as Airflow finds them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher
from airflow_provider_glidemq.assets.glidemq import QueueAddress, queue_address, to_openlineage
from airflow_provider_glidemq.queues.glidemq import GlideMQMessageQueueProvider
from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger

from glidemq_orchestrate.foundation.importing import importing

URIS: list[tuple[str, Any, Any]] = [
    ("glidemq://main/orders", {"jobs": "order"}, {"jobs": "order"}),
    (
        "glidemq://main/orders?jobs=order,bill",
        {"interval": 9},
        {"jobs": ["order", "bill"], "interval": 9},
    ),
]

WRONG_URIS: list[str] = [
    "glidemq://main",
    "glidemq:///orders",
    "glidemq://main/a/b",
    "glidemq://main/a?x=1",
    "kafka://a/b",
]


def by_queue(queue: str, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return MessageQueueTrigger(queue=queue, **kwargs)


def test_the_scheme_makes_our_trigger() -> None:
    made = MessageQueueTrigger(scheme="glidemq", queue_name="orders", jobs="order", batch_size=7)
    expected = GlideMQMessageTrigger(queue_name="orders", jobs=["order"], batch_size=7)
    assert made.serialize() == expected.serialize()
    assert isinstance(made.trigger, GlideMQMessageTrigger)
    AssetWatcher(name="orders", trigger=made)


def test_the_older_form_by_uri_does_too(subtests: pytest.Subtests) -> None:
    for uri, kwargs, expected in URIS:
        with subtests.test(uri=uri):
            made = GlideMQMessageTrigger(queue_name="orders", glidemq_conn_id="main", **expected)
            assert by_queue(uri, **kwargs).serialize() == made.serialize()


def test_what_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="jobs: given in glidemq://main/orders"):
        by_queue("glidemq://main/orders?jobs=a", jobs="b").serialize()


def test_no_other_scheme_is_ours() -> None:
    provider = GlideMQMessageQueueProvider()
    assert not provider.queue_matches("redis+pubsub://main/orders")
    assert not provider.scheme_matches("kafka")
    assert provider.scheme_matches("glidemq")


def test_a_uri_of_another_form_is_refused(subtests: pytest.Subtests) -> None:
    for uri in WRONG_URIS:
        with subtests.test(uri=uri), pytest.raises(ValueError, match="glidemq://CONNECTION/QUEUE"):
            queue_address(uri)


def test_an_asset_of_the_scheme_is_checked_by_airflow() -> None:
    assert Asset("orders", uri="glidemq://main/orders").uri == "glidemq://main/orders"
    with pytest.raises(ValueError, match="glidemq://CONNECTION/QUEUE"):
        Asset("orders", uri="glidemq://main")
    assert queue_address("glidemq://main/a%20b?jobs=x") == QueueAddress("main", "a b", ("x",))


def test_an_asset_of_the_scheme_is_a_dataset_of_openlineage() -> None:
    with importing():
        found = to_openlineage(Asset("orders", uri="glidemq://main/orders"), None)
    assert (found.namespace, found.name) == ("glidemq://main", "orders")
