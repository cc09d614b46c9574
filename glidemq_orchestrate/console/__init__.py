"""The console: a page over flows, queues, workers and schedules, and the service behind it.

``glidemq ui`` serves it. ``create_app`` returns the same as an ASGI application, which others can mount under
any path. Needs the extra ``[ui]``.
"""

from glidemq_orchestrate.console.app import create_app

__all__ = ["create_app"]
