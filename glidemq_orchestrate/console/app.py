"""The ASGI application of the console: its routes, and what they answer when something is wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse

from glidemq_orchestrate import __version__
from glidemq_orchestrate.clients.client import AsyncClient
from glidemq_orchestrate.console import (
    flow_changes,
    flow_pages,
    flow_plans,
    metrics,
    node_pages,
    queue_changes,
    queue_lists,
    queue_pages,
    queue_plans,
    refusals,
    schedule_pages,
)
from glidemq_orchestrate.console.access import Access
from glidemq_orchestrate.console.guard import Guard, NotAllowed, NotSignedIn
from glidemq_orchestrate.console.held import Held
from glidemq_orchestrate.console.live import Live
from glidemq_orchestrate.console.rates import Lately
from glidemq_orchestrate.console.reader import Reader
from glidemq_orchestrate.console.snapshots import FlowViews, StillReading
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.settings import Address, ConnectionSettings
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

STATIC: Final = Path(__file__).parent / "static"
NAMES_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 12.0
PING_SECONDS: Final = 3.0
"""After an answer that is late, the server gets so long to prove that it is there."""
GZIP_BYTES: Final = 1_000


@dataclass
class Console:
    """What the routes share.

    Attributes:
        client: The server that is shown.
        settings: The server.
        about: What the page is told of the service.
        guard: Who may see and change what.
        views: The flows that were looked at last.
        live: What is looked at now.
        scraper: Reads what Prometheus asks for.
        reader: Reads what has no public method.
        lately: How long jobs waited and ran.
        held: How many jobs wait for others.
    """

    client: AsyncClient
    settings: ConnectionSettings
    about: dict[str, Any]
    guard: Guard
    views: FlowViews = field(init=False)
    live: Live = field(init=False)
    scraper: metrics.Scraper = field(init=False)
    reader: Reader = field(init=False)
    lately: Lately = field(init=False)
    held: Held = field(init=False)
    _names: list[str] = field(default_factory=list)
    _names_at: float = -NAMES_SECONDS
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _letters: Mapping[str, list[str]] = field(default_factory=dict)
    _letters_at: float = -NAMES_SECONDS

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.views = FlowViews(self.client)
        self.live = Live(self.client, self.views)
        self.scraper = metrics.Scraper(self, self.settings)
        self.lately = Lately(self.client)
        self.held = Held(self.client)
        self.reader = Reader(self.settings, prefix=self.settings.prefix)

    async def close(self) -> None:
        """End what goes on, and close the connections."""
        self.live.stop()
        await self.scraper.close()
        await self.reader.close()
        await self.client.close()

    @property
    def known_queues(self) -> list[str]:
        """The names of the queues as they were read last."""
        return self._names

    async def queues(self) -> list[str]:
        """The names of all queues, at most 15 s old: to find them, all keys of the server are scanned."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._names_at >= NAMES_SECONDS:
                self._names = await self.client.queues()
                self._names_at = loop.time()
            return self._names

    async def dead_letters_of(self) -> Mapping[str, list[str]]:
        """The queues whose dead letters each dead-letter queue holds, at most 15 s old."""
        loop = asyncio.get_running_loop()
        names = await self.queues()
        if loop.time() - self._letters_at >= NAMES_SECONDS:
            every = await queue_pages.for_each(
                names, lambda name: self.client.queue(name).dead_letter_queue()
            )
            found: dict[str, list[str]] = {}
            for name, letters in zip(names, every, strict=True):
                if letters:
                    found.setdefault(letters, []).append(name)
            self._letters, self._letters_at = found, loop.time()
        return self._letters


def create_app(  # noqa: PLR0913  its settings
    url: Address = None,
    *,
    prefix: str = DEFAULT_PREFIX,
    token: str = "",
    read_only: bool = False,
    behind_proxy: bool = False,
    guard: Guard | None = None,
) -> Access:
    """The console as an ASGI application, to be served or mounted under any path.

    It opens its connections with the first request, and closes them when the server that runs it stops.
    Whoever mounts it in another application awaits its ``aclose()`` when that ends.

    Args:
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        prefix: First part of every key.
        token: What users must know. Without one, only requests to this machine's own names are answered.
        read_only: It has no route that changes anything.
        behind_proxy: Somebody in front of it signs people in, so requests to any name are answered without a
            token.
        guard: Says who may see and change what, if the application in which it is mounted knows that.

    Raises:
        ConfigurationError: The URL or the prefix is not valid.
    """
    settings = ConnectionSettings.resolve(url, prefix=prefix)
    client = AsyncClient(settings, prefix=prefix)
    about = {
        "version": __version__,
        "server": settings.where,
        "prefix": prefix,
        "read_only": read_only,
    }
    console = Console(client, settings, about, guard or Guard())

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await console.close()

    app = FastAPI(
        title="glidemq-orchestrate console",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses={
            202: {"model": refusals.Later, "description": "It is still being read: ask again"},
            422: {"model": refusals.Refusal, "description": "A value is not valid"},
        },
    )
    app.state.console = console
    api = APIRouter(prefix="/api")
    api.include_router(flow_pages.router)
    api.include_router(flow_plans.router)
    api.include_router(node_pages.router)
    api.include_router(queue_pages.router)
    api.include_router(queue_lists.router)
    api.include_router(queue_plans.router)
    api.include_router(schedule_pages.router)
    if not read_only:
        api.include_router(flow_changes.router)
        api.include_router(queue_changes.router)
    app.include_router(api)
    app.include_router(metrics.router)
    app.add_exception_handler(GlideMQError, refusals.on_error)
    app.add_exception_handler(StillReading, refusals.on_reading)
    app.add_exception_handler(NotSignedIn, refusals.on_not_signed_in)
    app.add_exception_handler(NotAllowed, refusals.on_not_allowed)
    app.add_exception_handler(RequestValidationError, refusals.on_bad_value)
    app.add_exception_handler(HTTPException, refusals.on_no_route)
    app.add_api_route("/", _page, include_in_schema=False)
    app.add_api_route("/of", flow_pages.of, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.middleware("http")(_answered)
    app.add_middleware(GZipMiddleware, minimum_size=GZIP_BYTES)
    return Access(app, token=token, is_behind_proxy=behind_proxy, close=console.close)


async def _late(console: Console) -> Response:
    """The queue server is away, or has much to do."""
    try:
        async with asyncio.timeout(PING_SECONDS):
            await console.reader.is_there()
    except (GlideMQError, TimeoutError):
        error = f"the queue server has not answered within {ANSWER_SECONDS + PING_SECONDS:.0f} s"
        return JSONResponse({"error": error, "fix": ""}, status_code=503)
    return refusals.later()


async def _page() -> FileResponse:
    """The page itself."""
    return FileResponse(STATIC / "index.html")


async def _answered(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    """Answer in time; nothing of the service is kept by browsers: it changes, and may be private."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS if request.method == "GET" else None):
            response = await go_on(request)
    except TimeoutError:
        response = await _late(request.app.state.console)
    response.headers.setdefault("cache-control", "no-store")
    return response
