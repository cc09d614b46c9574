"""The results of a flow that go to XCom. XCom is in Airflow's database, so they are limited in size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_glidemq.exceptions import GlideMQResultTooLarge
from airflow_provider_glidemq.version_compat import configuration
from glidemq_orchestrate import runs

MAX_RESULT_BYTES: Final = 48 * 1024
_MODES: Final = ("none", "leaves", "all")
KEEPING: Final = " When the DAG is mended, clear the task: it reads the results again, and nothing runs."
_OBJECT_STORAGE: Final = "XComObjectStorageBackend"


def check_result(result: object) -> None:
    """Refuse an invalid ``result`` parameter while the DAG is parsed.

    Raises:
        ValueError: It is neither one of ``none``, ``leaves``, ``all`` nor a list of names.
    """
    if isinstance(result, str):
        if result in _MODES:
            return
    elif isinstance(result, list | tuple) and all(isinstance(name, str) for name in result):
        return
    modes = ", ".join(_MODES)
    raise ValueError(f"result must be one of {modes}, or a list of node names, got {result!r}")


def check_size(flow_id: str, results: Mapping[str, Any], advice: str = "", what: str = "flow") -> None:
    """Refuse what Airflow's database should not hold; ``advice`` ends the message, ``what`` begins it.

    Raises:
        GlideMQResultTooLarge: More than 48 KiB of JSON, and no XCom backend that stores them elsewhere.
    """
    try:
        runs.check_size(results, MAX_RESULT_BYTES)
    except runs.ResultsTooLarge as exc:
        if not has_object_storage():
            raise GlideMQResultTooLarge(flow_id, exc.size, exc.limit, exc.sizes, advice, what) from exc


def longest_map() -> int:
    """How many tasks of Airflow may be made of one result."""
    return int(configuration().getint("core", "max_map_length", fallback=1024))


def has_object_storage() -> bool:
    """Whether ``[core] xcom_backend`` is another than the default, which stores all in Airflow's database.

    That of ``airflow.providers.common.io`` does so too unless ``xcom_objectstorage_threshold`` is set.
    """
    conf = configuration()
    backend = conf.get("core", "xcom_backend", fallback="").rpartition(".")[2]
    if backend == _OBJECT_STORAGE:
        return bool(conf.getint("common.io", "xcom_objectstorage_threshold", fallback=-1) >= 0)
    return backend not in ("", "BaseXCom")
