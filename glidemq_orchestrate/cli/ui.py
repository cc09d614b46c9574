"""``glidemq ui``: serves the console."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from glidemq_orchestrate.cli.shell import Prefix, Url, console, reports_errors
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

RANDOM: Final = "random"
BACKLOG: Final = 128
LOCAL: Final = ("127.0.0.1", "localhost", "::1")


@reports_errors
def ui(
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port to listen on; 0: any free one.", min=0, max=65535)
    ] = 8790,
    token: Annotated[
        str,
        typer.Option(
            envvar="GLIDEMQ_UI_TOKEN",
            help="What users must know; 'random' makes one and prints it. Needed beyond this machine.",
        ),
    ] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Without anything that changes.")] = False,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front of it signs people in: no token needed.")
    ] = False,
) -> None:
    """Serve a page that shows flows, queues, workers and schedules, and mends them.

    The page works behind any proxy, under any path. Needs the extra "ui".
    """
    app, uvicorn = _imported()
    if host not in LOCAL and not (token or behind_proxy):
        raise ConfigurationError(
            f"the console would be open to everybody who reaches {host}. Fix: --token random, or "
            "--behind-proxy if a proxy signs people in"
        )
    if token == RANDOM:
        token = secrets.token_urlsafe(24)
    served = app(url, prefix=prefix, token=token, read_only=read_only, behind_proxy=behind_proxy)
    config = uvicorn.Config(
        served, host=host, port=port, log_level="warning", lifespan="on", timeout_graceful_shutdown=2
    )
    with config.bind_socket() as listening:
        listening.listen(BACKLOG)  # a request that comes before the server runs waits for it
        port = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        query = f"?{urlencode({'token': token})}" if token else ""  # such as one of base64
        console.print(f"http://{shown}:{port}/{query}", markup=False, highlight=False)
        console.print("Ctrl-C stops it.", markup=False)
        uvicorn.Server(config).run(sockets=[listening])


def _imported() -> tuple[Any, Any]:
    try:
        with importing():
            import uvicorn  # noqa: PLC0415  optional

            from glidemq_orchestrate.console import create_app  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"the console needs {exc.name}. Fix: pip install 'glidemq-orchestrate[ui]'"
        ) from None
    return create_app, uvicorn
