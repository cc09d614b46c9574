"""Steps that are safe to repeat, and one for each way not to be. Workers of the tests import it."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

from glidemq_orchestrate import Context, FlowNode, FlowSpec, Handlers, Suspend
from glidemq_orchestrate.testing.chaos import effect
from tests.server.testing.outside import bank, claim, folder, post

handlers = Handlers()


def nightly(jobs: list[int], name: str) -> FlowSpec:
    """A flow of safe steps."""
    return FlowSpec(name, [FlowNode(f"pure-{job}", queue="etl", job="pure", data=job) for job in jobs])


@handlers.handler("pure")
async def pure(ctx: Context) -> Any:
    """Safe: a function of its data."""
    await asyncio.sleep(0.02)
    return {"rows": [1, 2, 3], "of": ctx.data}


@handlers.handler("allowed")
async def allowed(ctx: Context) -> Any:
    """Safe: from where it may import what its job names."""
    await asyncio.sleep(0.02)
    return list(ctx.allow_import)


@handlers.handler("once")
def once(ctx: Context) -> str:
    """Safe: the target refuses the second of two with the same key."""
    time.sleep(0.02)
    if claim(f"once {ctx.flow_id}"):
        effect("once", ctx.flow_id)
    return "done"


@handlers.handler("charge")
def charge(ctx: Context) -> None:
    """Has its effect again."""
    time.sleep(0.02)
    effect("charge", ctx.data)
    time.sleep(0.02)


def crunch(ctx: Context) -> None:
    """Has its effect again, in a process."""
    effect("crunch", ctx.node)


handlers.handler("crunch", process=True)(crunch)


@handlers.handler("pay")
def pay(ctx: Context) -> None:
    """Has its effect again: by a function that is named on the command line."""
    bank.pay(7)
    bank.close({(1, 2): 3})
    assert bank.audit() == "Bank"
    time.sleep(0.02)


@handlers.handler("pool")
def pool(ctx: Context) -> None:
    """Has its effects again, in threads of its own."""
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda part: effect("part", part), range(2)))
    thread = Thread(target=effect, args=("whole",))
    thread.start()
    thread.join()
    time.sleep(0.02)


@handlers.handler("new key")
def new_key(ctx: Context) -> None:
    """Has its effect again, so that nothing can notice it."""
    effect("upload", uuid.uuid4())
    time.sleep(0.02)


@handlers.handler("fails")
async def fails(ctx: Context) -> None:
    """Fails without strikes."""
    raise KeyError("secret")


@handlers.handler("late")
def late(ctx: Context) -> None:
    """Leaves something behind each time that it runs, also when it was stopped in between."""
    time.sleep(0.2)
    with (folder() / f"late {ctx.flow_id}").open("a") as file:
        file.write("x")


@handlers.handler("claimed")
async def claimed(ctx: Context) -> None:
    """Notes that it was done before it does it."""
    if claim(f"claimed {ctx.flow_id}"):
        await post("somebody", "secret")


@handlers.handler("stamp")
async def stamp(ctx: Context) -> Any:
    """Returns something else each time."""
    await asyncio.sleep(0.02)
    return {"fixed": 1, "at": [time.monotonic_ns()]}


@handlers.handler("exclusive")
def exclusive(ctx: Context) -> None:
    """Fails when it runs again."""
    if not claim(f"exclusive {ctx.flow_id}"):
        raise FileExistsError("something secret")
    time.sleep(0.02)


@handlers.handler("grow")
async def grow(ctx: Context) -> None:
    """Safe: adds the same node each time."""
    assert ctx.flow is not None
    await ctx.flow.add_nodes_async([FlowNode("grown", queue="more", job="pure")])


@handlers.batch_handler("batch", size=3)
async def batch(contexts: list[Context]) -> list[Any]:
    """Has its effects again."""
    for context in contexts:
        effect("batch", context.node, ctx=context)
    bank.pay(8)  # of which job, nobody knows
    await asyncio.sleep(0.02)
    return [context.node for context in contexts]


@handlers.handler("suspended")
def suspended(_: Context) -> None:
    """Waits for somebody's signal."""
    raise Suspend


@handlers.handler("stuck")
async def stuck(ctx: Context) -> None:
    """Waits for what an earlier attempt holds."""
    while not claim(f"stuck {ctx.flow_id}"):  # noqa: ASYNC110  that is what it is for
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.05)
