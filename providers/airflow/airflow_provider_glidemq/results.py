"""The results of a flow that go to XCom. XCom is in Airflow's database, so their size is limited."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from airflow_provider_glidemq.exceptions import GlideMQResultTooLarge
from airflow_provider_glidemq.version_compat import configuration
from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import InvalidFlow

MAX_RESULT_BYTES: Final = 48 * 1024
SHOWN: Final = 10
_MODES: Final = ("none", "leaves", "all")
KEEPING: Final = " Once the DAG is fixed, clear the task: it reads the results again, and nothing runs."
_OBJECT_STORAGE: Final = "XComObjectStorageBackend"
_OF_A_MAP: Final = re.compile(r".+\[\d+\]")


def check_result(result: object) -> None:
    """Refuse an invalid ``result`` parameter while the DAG is parsed.

    Raises:
        ValueError: The value is neither ``none``, ``leaves``, ``all`` nor a list of names.
    """
    if isinstance(result, str):
        if result in _MODES:
            return
    elif isinstance(result, list | tuple) and all(isinstance(name, str) for name in result):
        return
    modes = ", ".join(_MODES)
    raise ValueError(f"result must be one of {modes}, or a list of node names, got {result!r}")


def check_names(result: object, known: Collection[str]) -> None:
    """Refuse a list of results of nodes that the flow does not have, before it runs.

    Names such as ``clean[0]`` are accepted: running nodes map over items.

    Raises:
        InvalidFlow: The flow has no node of such a name.
    """
    if not isinstance(result, list | tuple):
        return
    for name in result:
        if name not in known and not _OF_A_MAP.fullmatch(name):
            near = runs.nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(sorted(known)[:SHOWN])}."
            raise InvalidFlow(
                f"result names {name!r}, and the flow has no such node; {hint} For nodes that running nodes "
                "add, use result='leaves' or result='all'"
            )


def check_size(flow_id: str, results: Mapping[str, Any], advice: str = "", what: str = "flow") -> None:
    """Refuse results that are too large for XCom; ``what`` starts the message, ``advice`` ends it.

    Raises:
        GlideMQResultTooLarge: More than 48 KiB of JSON, and no XCom backend stores them elsewhere.
    """
    try:
        runs.check_size(results, MAX_RESULT_BYTES)
    except runs.ResultsTooLarge as exc:
        if not has_object_storage():
            raise GlideMQResultTooLarge(flow_id, exc.size, exc.limit, exc.sizes, advice, what) from exc


def check_count(flow_id: str, name: str, count: int, advice: str = "") -> None:
    """Refuse so many results of an array that they are too large for XCom in any case; they need not be read.

    Raises:
        GlideMQResultTooLarge: They are more than 48 KiB of JSON, and no XCom backend stores them elsewhere.
    """
    least = 2 * count  # a digit and a comma each
    if least > MAX_RESULT_BYTES and not has_object_storage():
        raise GlideMQResultTooLarge(flow_id, least, MAX_RESULT_BYTES, {name: least}, advice, "flow")


def longest_map() -> int:
    """The max number of tasks that Airflow may expand from one result."""
    return int(configuration().getint("core", "max_map_length", fallback=1024))


def has_object_storage() -> bool:
    """Whether ``[core] xcom_backend`` stores results outside Airflow's database, as the default does not.

    The backend of ``airflow.providers.common.io`` does so only if ``xcom_objectstorage_threshold`` is set.
    """
    conf = configuration()
    backend = conf.get("core", "xcom_backend", fallback="").rpartition(".")[2]
    if backend == _OBJECT_STORAGE:
        return bool(conf.getint("common.io", "xcom_objectstorage_threshold", fallback=-1) >= 0)
    return backend not in ("", "BaseXCom")
