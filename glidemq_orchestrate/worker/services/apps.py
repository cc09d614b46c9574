"""Apps: the modules that name the handlers of a worker, as ``--app`` does."""

from __future__ import annotations

import importlib
import sys

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.functions import with_directory
from glidemq_orchestrate.foundation.suggestions import did_you_mean
from glidemq_orchestrate.foundation.texts import shown
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.services.worker import Worker


def package_of(app: str) -> str:
    """The package of ``module`` or ``module:name``; a top-level module is its own package."""
    module = app.partition(":")[0]
    spec = sys.modules[module].__spec__
    return (spec and spec.parent) or module


def check_app(name: str) -> None:
    """Refuse a name that is not ``module`` or ``module:name``, without importing anything.

    Raises:
        ConfigurationError: It is neither.
    """
    if not all(part.isidentifier() for part in name.partition(":")[0].split(".")):
        raise ConfigurationError(f"--app {shown(name)} is not a module name")


def load_handlers(name: str) -> Handlers:
    """The handlers in ``module`` or ``module:name``, from a ``Handlers`` or a ``Worker``.

    Raises:
        ConfigurationError: There is no such module or name, or it has no handlers.
    """
    module_name, _, attribute = name.partition(":")
    with_directory()
    check_app(name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and not f"{module_name}.".startswith(f"{exc.name}."):
            raise ConfigurationError(
                f"--app {name}: {module_name} imports {exc.name}, which is not installed"
            ) from exc
        fix = "install it, or start in its directory"
        if module_name.endswith(".py"):
            fix = f"leave .py out: --app {module_name.removesuffix('.py').replace('/', '.')}"
        raise ConfigurationError(f"--app {name}: there is no module {exc.name}. Fix: {fix}") from exc
    named = [attribute] if attribute else [*vars(module), "handlers"]  # a module may create them on first use
    found = [getattr(module, name, None) for name in named]
    for thing in found:
        if isinstance(thing, Handlers):
            return thing
        if isinstance(thing, Worker):
            return thing.handlers
    there = [known for known, thing in vars(module).items() if isinstance(thing, Handlers | Worker)]
    near = did_you_mean(f"{module_name}:{attribute}", [f"{module_name}:{known}" for known in there])
    fix = near or ". Fix: create a glidemq_orchestrate.Handlers() there"
    raise ConfigurationError(f"--app {name} has no handlers{fix}")
