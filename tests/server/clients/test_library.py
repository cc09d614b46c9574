"""Which function libraries are loaded, replaced, or left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Queue
from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.errors import LibraryVersionMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS, THEIRS = library(ORCHESTRATE), library(GLIDEMQ)


@pytest.fixture(autouse=True)
def no_library_stays(redis_client: Any) -> Iterator[None]:
    redis_client.function_flush()
    yield
    redis_client.function_flush()


def code(redis_client: Any) -> dict[str, str]:
    found = [dict(zip(one[::2], one[1::2], strict=True)) for one in redis_client.function_list(withcode=True)]
    return {one["library_name"]: one["library_code"] for one in found}


def foreign(version: str) -> str:
    return (
        "#!lua name=glidemq\nredis.register_function{function_name='glidemq_version', "
        f"callback=function() return '{version}' end, flags={{'no-writes'}}}}\n"
    )


def test_the_first_call_loads_both(queue: Queue, redis_client: Any) -> None:
    queue.add("work")
    assert code(redis_client) == {GLIDEMQ: THEIRS.source, ORCHESTRATE: OURS.source}


@pytest.mark.parametrize("version", ["92", "94", "1"])
def test_another_version_of_glide_mq_is_refused_and_untouched(
    queue: Queue, redis_client: Any, version: str
) -> None:
    redis_client.function_load(foreign(version))
    with pytest.raises(
        LibraryVersionMismatch, match=f"library glidemq version {version}, this client needs 93"
    ):
        queue.add("work")
    assert code(redis_client) == {GLIDEMQ: foreign(version)}
    assert redis_client.dbsize() == 0


def test_a_foreign_library_of_the_right_version_is_kept(queue: Queue, redis_client: Any) -> None:
    source = THEIRS.source + "\n-- built elsewhere\n"
    redis_client.function_load(source)
    assert queue.add("work") == "1"
    assert code(redis_client)[GLIDEMQ] == source


def other_version(version: str) -> str:
    return OURS.source.replace(
        f"L.version, L.sha256 = '{OURS.version}'", f"L.version, L.sha256 = '{version}'"
    )


@pytest.mark.parametrize(
    "source", [other_version("0.0.1"), OURS.source.replace(OURS.sha256, "0" * 64)], ids=["old", "own"]
)
def test_an_older_or_changed_library_of_ours_is_replaced(
    queue: Queue, redis_client: Any, source: str
) -> None:
    assert source != OURS.source
    redis_client.function_load(source)
    queue.add("work")
    assert code(redis_client)[ORCHESTRATE] == OURS.source


@pytest.mark.parametrize("version", ["0.2.0", "0.10.0", "1.0.0"])
def test_a_newer_library_of_ours_is_refused_and_untouched(
    queue: Queue, redis_client: Any, version: str
) -> None:
    redis_client.function_load(other_version(version))
    with pytest.raises(LibraryVersionMismatch, match=f"{ORCHESTRATE} version {version}"):
        queue.add("work")
    assert code(redis_client)[ORCHESTRATE] == other_version(version)


def test_libraries_that_are_lost_between_two_calls_are_loaded_again(queue: Queue, redis_client: Any) -> None:
    queue.add("work")
    redis_client.function_flush()
    assert queue.add("work") == "2"
    assert set(code(redis_client)) == {GLIDEMQ, ORCHESTRATE}
