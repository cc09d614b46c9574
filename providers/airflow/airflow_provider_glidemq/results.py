"""The results of a flow that go to XCom. XCom is in Airflow's database, so they are limited in size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from airflow_provider_glidemq.exceptions import GlideMQResultTooLarge
from airflow_provider_glidemq.version_compat import configuration

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow, FlowSpec

ResultMode = Literal["none", "leaves", "all"]
Result: TypeAlias = ResultMode | Sequence[str]
MAX_RESULT_BYTES: Final = 48 * 1024
KEEPING: Final = " When the DAG is mended, clear the task: it reads the results again, and nothing runs."
_OBJECT_STORAGE: Final = "XComObjectStorageBackend"


def check_result(result: object) -> None:
    """Refuse what does not say which results are wanted, while the DAG is parsed.

    Raises:
        ValueError: It is neither one of ``none``, ``leaves``, ``all`` nor a list of names.
    """
    if isinstance(result, str):
        if result in get_args(ResultMode):
            return
    elif isinstance(result, list | tuple) and all(isinstance(name, str) for name in result):
        return
    modes = ", ".join(get_args(ResultMode))
    raise ValueError(f"result must be one of {modes}, or a list of node names, got {result!r}")


def leaves_of(spec: FlowSpec) -> list[str]:
    """The nodes of a specification that no other waits for."""
    inner = {str(name) for node in spec.nodes for name in node.after}
    return [node.name for node in spec.nodes if node.name not in inner]


def collect(flow: Flow, result: Result, leaves: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Read the results as ``{node: result}``; None for the mode ``none``. Reads no more than is wanted.

    Args:
        flow: A flow that has ended.
        result: Which.
        leaves: Its leaves, where they are known.
    """
    if result == "none":
        return None
    if result == "all":
        return dict(flow.results())
    if result == "leaves":
        return dict(flow.results(flow.leaves() if leaves is None else leaves))
    return dict(flow.results(result))


def check_size(flow_id: str, results: Mapping[str, Any], advice: str = "", what: str = "flow") -> None:
    """Refuse what Airflow's database should not hold; ``advice`` ends the message, ``what`` begins it.

    Raises:
        GlideMQResultTooLarge: More than 48 KiB of JSON, and no XCom backend that stores them elsewhere.
    """
    size = len(json.dumps(results).encode())
    if size > MAX_RESULT_BYTES and not has_object_storage():
        sizes = {name: len(json.dumps(value).encode()) for name, value in results.items()}
        raise GlideMQResultTooLarge(flow_id, size, MAX_RESULT_BYTES, sizes, advice, what)


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
