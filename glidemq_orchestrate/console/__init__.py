"""The console: a page over flows, queues, workers and schedules, and the service behind it.

``glidemq ui`` serves it. ``create_app`` returns the same as an ASGI application, which others can mount under
any path. Needs the extra ``[ui]``.
"""

from fastapi import Request

from glidemq_orchestrate.console.app import create_app
from glidemq_orchestrate.console.guard import Guard, NotAllowed, NotSignedIn

__all__ = ["Guard", "NotAllowed", "NotSignedIn", "Request", "create_app"]
