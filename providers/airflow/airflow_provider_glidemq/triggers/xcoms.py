"""XComs read and written in a triggerer: of the task that waits, and of the task that submitted its flow.

What an end event of a trigger carries arrives as text of JSON; what is written here arrives as it is. Calls
go by a thread, since Airflow's own are blocking before 3.3.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_glidemq.triggers.place import Place


async def read(place: Place, key: str) -> Any:
    """The value; None if there is none."""
    return await asyncio.to_thread(XCom.get_one, key=key, **place._asdict())


async def write(place: Place, key: str, value: Any, *, length: int | None = None) -> None:
    """Store a value in the place of any other; ``length``: how many tasks a mapped task makes of it."""
    await asyncio.to_thread(XCom.set, key, value, _mapped_length=length, **place._asdict())


async def delete(place: Place, key: str) -> None:
    """Remove a value, if there is one."""
    await asyncio.to_thread(XCom.delete, key=key, **place._asdict())
