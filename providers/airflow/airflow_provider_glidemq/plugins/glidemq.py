"""GlideMQPlugin: the console in Airflow's pages, behind its login and permissions.

Airflow imports it in every process, so nothing is opened, and the console is not imported, before the first
request.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, GlideMQHook
from airflow_provider_glidemq.version_compat import AirflowException
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from glidemq_orchestrate.console.access import Access

PLACE: Final = "/glidemq"
AGAIN_SECONDS: Final = 10.0
SECTION: Final = "glidemq"
CONN_ID: Final = "console_conn_id"


class AirflowConsole:
    """The console for Airflow's API server, as an ASGI application.

    It shows the server of the connection ``glidemq_default``, or of the one in the option ``console_conn_id``
    of the section ``[glidemq]``.
    """

    def __init__(self) -> None:
        self._app: Access | None = None
        self._trouble, self._tried_at = "", -AGAIN_SECONDS
        self._lock: asyncio.Lock | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        app = await self._opened()
        if app is not None:
            await app(scope, receive, send)
            return
        body = json.dumps({"error": self._trouble, "fix": ""}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _opened(self) -> Access | None:
        """The console; None if its connection cannot be used, which is tried again after a pause."""
        self._lock = self._lock or asyncio.Lock()
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._app is None and loop.time() - self._tried_at >= AGAIN_SECONDS:
                self._tried_at = loop.time()
                try:
                    self._app = await asyncio.to_thread(_made)
                except (AirflowException, GlideMQError, ImportError) as exc:
                    self._trouble = f"the console of glide-mq cannot be opened: {exc}"
            return self._app


def _made() -> Access:
    from airflow_provider_glidemq.plugins.guard import AirflowGuard  # noqa: PLC0415  only for the API server
    from glidemq_orchestrate.console import create_app  # noqa: PLC0415

    conn_id = conf.get(SECTION, CONN_ID, fallback=DEFAULT_CONN_ID)
    settings = GlideMQHook(conn_id).get_settings()
    return create_app(settings, prefix=settings.prefix, behind_proxy=True, guard=AirflowGuard())


def _views() -> list[dict[str, str]]:
    """The page in the menu, and the tabs of DAG runs and of task instances."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/") + PLACE
    of_run = f"{base}/of?dag_id={{DAG_ID}}&run_id={{RUN_ID}}"
    views = {"nav": f"{base}/", "dag_run": of_run}
    views["task_instance"] = f"{of_run}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}"
    return [
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
