"""Assets with URIs of the form ``glidemq://CONNECTION/QUEUE``. Imports nothing heavy: DAG files come here."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

SCHEME = "glidemq"
_FORM = "glidemq://CONNECTION/QUEUE, for example glidemq://glidemq_default/orders"


class QueueAddress(NamedTuple):
    """A queue on a connection, and the names of its jobs; an empty connection or no names: not given."""

    conn_id: str
    queue: str
    jobs: tuple[str, ...] = ()


def queue_address(uri: str) -> QueueAddress:
    """Read ``glidemq://CONNECTION/QUEUE?jobs=NAME,NAME``.

    Raises:
        ValueError: The URI has another form.
    """
    return _address(urlsplit(uri))


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of an asset; Airflow calls it.

    Raises:
        ValueError: The URI is not of the form ``glidemq://CONNECTION/QUEUE``.
    """
    _address(uri)
    return uri


def to_openlineage(asset: Any, lineage_context: Any) -> Any:  # noqa: ARG001  Airflow's signature
    """The queue as an OpenLineage dataset; Airflow calls it."""
    from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415  with OpenLineage only

    address = queue_address(asset.uri)
    return Dataset(namespace=f"{SCHEME}://{address.conn_id}", name=address.queue)


def _address(uri: SplitResult) -> QueueAddress:
    queue = unquote(uri.path.strip("/"))
    options = dict(parse_qsl(uri.query, keep_blank_values=True))
    jobs = tuple(filter(None, options.pop("jobs", "").split(",")))
    if uri.scheme != SCHEME or not uri.netloc or not queue or "/" in queue or "@" in uri.netloc or options:
        raise ValueError(
            f"a queue is named {_FORM}, with ?jobs=NAME,NAME behind it where jobs are to be named"
        )
    return QueueAddress(unquote(uri.netloc), queue, jobs)
