"""The job hooks of a registry, registered by ``Handlers.on_job``."""

from __future__ import annotations

import logging

from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.middleware import Middleware
from glidemq_orchestrate.worker.handlers.registered import JobEvent
from glidemq_orchestrate.worker.log import about

logger = logging.getLogger("glidemq_orchestrate.worker")


class Hooks(Middleware):
    """Calls the hooks with job events; if one raises, the others are still called."""

    def __init__(self, handlers: Handlers) -> None:
        self._hooks = handlers.job_hooks

    @property
    def hears_events(self) -> bool:
        """Whether there are any hooks."""
        return bool(self._hooks)

    def on_event(self, event: JobEvent) -> None:
        """Call each hook."""
        for hook in self._hooks:
            try:
                hook(event)
            except BaseException:  # code of the user
                logger.exception("a hook raised", extra=about("hook_raised", event))
