"""GlideMQPlugin: the console in Airflow's pages, behind its login and permissions.

Airflow imports it in every process, so nothing is opened, and the console is not imported, before the first
request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, GlideMQHook
from airflow_provider_glidemq.version_compat import AirflowException
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from glidemq_orchestrate.console.access import Access

Message = MutableMapping[str, Any]

PLACE: Final = "/glidemq"
AGAIN_SECONDS: Final = 10.0
SECTION: Final = "glidemq"
CONN_ID: Final = "console_conn_id"
MORE_CONN_IDS: Final = "console_conn_ids"
OTHERS: Final = "/on/"
"""Below it, each other connection has a console."""
FLOW: Final = "./#/flows/"


def shown_connections() -> list[str]:
    """The connections whose servers are shown; the first one is that of the page in the menu."""
    first = conf.get(SECTION, CONN_ID, fallback=DEFAULT_CONN_ID)
    more = conf.get(SECTION, MORE_CONN_IDS, fallback="")
    return list(dict.fromkeys([first, *(name.strip() for name in more.split(",") if name.strip())]))


class AirflowConsole:
    """The consoles for Airflow's API server, as one ASGI application.

    It shows the server of the connection ``glidemq_default``, or of the one in the option ``console_conn_id``
    of the section ``[glidemq]``; below ``on/CONNECTION/`` those of the connections in ``console_conn_ids``.
    """

    def __init__(self) -> None:
        self._consoles: dict[str, ConnectionConsole] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        names = shown_connections()
        for name in names:
            self._consoles.setdefault(name, ConnectionConsole(name))
        root, path = scope.get("root_path", ""), _raw_path(scope)
        if path.startswith(OTHERS):
            name, _, rest = path.removeprefix(OTHERS).partition("/")
            if unquote(name) not in names:
                error = f"the connection {unquote(name)} is not shown here"
                fix = f"add it to {MORE_CONN_IDS} in section [{SECTION}] of Airflow's configuration"
                await _refuse(send, 404, error, fix)
            elif path == OTHERS + name:
                await _reply(send, 307, b"", [(b"location", f"{name}/".encode("latin-1"))])
            else:
                below = f"{root}{OTHERS}{name}"
                scope = {**scope, "root_path": below, "path": f"{below}/{unquote(rest)}"}
                await self._consoles[unquote(name)](scope, receive, send)
        elif path == "/of" and len(names) > 1:
            await self._find(names, scope, receive, send)
        else:
            await self._consoles[names[0]](scope, receive, send)

    async def _find(self, names: list[str], scope: Any, receive: Any, send: Any) -> None:
        """Open the flow of a task, on the first server that has it."""
        found: list[Message] = []
        for number, name in enumerate(names):
            said: list[Message] = []
            await self._consoles[name](scope, receive, _writer(said))
            place = dict(said[0]["headers"]).get(b"location", b"").decode("latin-1")
            if place.startswith(FLOW):
                below = f".{OTHERS}{quote(name, safe='')}/" if number else "./"
                await _reply(send, 303, b"", [(b"location", place.replace("./", below, 1).encode("latin-1"))])
                return
            found = found or said
            if said[0]["status"] in (401, 403):
                break
        for message in found:
            await send(message)


class ConnectionConsole:
    """The console for the server of one connection."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._app: Access | None = None
        self._trouble, self._tried_at = "", -AGAIN_SECONDS
        self._lock: asyncio.Lock | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        app = await self._opened()
        if app is not None:
            await app(scope, receive, send)
        else:
            await _refuse(send, 503, self._trouble)

    async def _opened(self) -> Access | None:
        """The console; None if its connection cannot be used, which is tried again after a pause."""
        self._lock = self._lock or asyncio.Lock()
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._app is None and loop.time() - self._tried_at >= AGAIN_SECONDS:
                self._tried_at = loop.time()
                try:
                    self._app = await asyncio.to_thread(_made, self._conn_id)
                except (AirflowException, GlideMQError, ImportError) as exc:
                    self._trouble = f"the console of glide-mq cannot be opened: {exc}"
            return self._app


def _made(conn_id: str) -> Access:
    from airflow_provider_glidemq.plugins.guard import AirflowGuard  # noqa: PLC0415  only for the API server
    from glidemq_orchestrate.console import create_app  # noqa: PLC0415

    settings = GlideMQHook(conn_id).get_settings()
    return create_app(settings, prefix=settings.prefix, behind_proxy=True, guard=AirflowGuard())


def _raw_path(scope: Any) -> str:
    """The path below that of the plugin, as it was sent: the name of a connection may contain a slash."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    raw = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
    for whole, start in ((raw, quote(root)), (path, root)):
        if start and whole.startswith(f"{start}/"):
            return whole.removeprefix(start)
    return raw or path


def _writer(messages: list[Message]) -> Callable[[Message], Awaitable[None]]:
    async def write(message: Message) -> None:
        messages.append(message)

    return write


async def _refuse(send: Any, status: int, error: str, fix: str = "") -> None:
    body = json.dumps({"error": error, "fix": fix}).encode()
    await _reply(send, status, body, [(b"content-type", b"application/json")])


async def _reply(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _views() -> list[dict[str, str]]:
    """The pages in the menu, and the tabs of DAG runs and of task instances."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/") + PLACE
    of_run = f"{base}/of?dag_id={{DAG_ID}}&run_id={{RUN_ID}}"
    views = {"nav": f"{base}/", "dag_run": of_run}
    views["task_instance"] = f"{of_run}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}"
    others = [
        {
            "name": f"glide-mq ({name})",
            "href": f"{base}{OTHERS}{quote(name, safe='')}/",
            "destination": "nav",
            "url_route": f"glidemq-nav-{re.sub('[^0-9A-Za-z_-]', '-', name)}",
            "category": "browse",
        }
        for name in shown_connections()[1:]
    ]
    return others + [
        {
            "name": "Flows" if where != "nav" else "glide-mq",
            "href": href,
            "destination": where,
            "url_route": f"glidemq-{where.replace('_', '-')}",
            **({"category": "browse"} if where == "nav" else {}),
        }
        for where, href in views.items()
    ]


class GlideMQPlugin(AirflowPlugin):
    """Shows flows in Airflow: a page in the menu, and a tab on DAG runs and task instances.

    Who may not see a DAG does not see its flows, and who may not edit its runs cannot retry, restart or
    cancel them. Queues are for those who may see the jobs of Airflow. Needs ``glidemq-orchestrate[ui]``.
    """

    name = "glidemq"
    fastapi_apps = [  # noqa: RUF012  as Airflow declares it
        {"app": AirflowConsole(), "url_prefix": PLACE, "name": "glide-mq console"}
    ]
    external_views = _views()
