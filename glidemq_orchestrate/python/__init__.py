"""Python functions for workers: ``glidemq worker --app glidemq_orchestrate.python`` runs ``python`` jobs.

The payload of such a job is::

    {"callable": "package.module:function", "arguments": {"month": 1}}

See ``glidemq_orchestrate.python.functions``.
"""

from glidemq_orchestrate.python import expand
from glidemq_orchestrate.python.functions import handlers

handlers.include(expand.handlers)

__all__ = ["handlers"]
