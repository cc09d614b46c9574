"""Sessions of one context that each have their own cache of tables, and their own global views.

Spark has one cache for all sessions of a context. It identifies tables by their plans, so a step would
uncache what another has cached too, read rows that another has cached, and refresh or clear what others use.
Spark has no public way to create another cache: the state that the sessions of a context share is copied by
reflection, without its cache and its global views. Everything else is the same: the catalog, streams, the
pages of the UI.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

logger = logging.getLogger("glidemq_orchestrate.spark")

AGAIN_SECONDS: Final = 60.0
"""How long sessions share the cache after the catalog could not be reached."""
_PLACE: Final = "existingSharedState"
"""The field of a session with its shared state; read once, when the session is first used."""
_CACHE: Final = "cacheManager"
_VIEWS: Final = "globalTempViewManager"
_lock = threading.Lock()
_latest: Sessions | None = None
_OF_PARENTS: Final[list[object]] = []
"""Referenced in a forked child, because Py4J would report collected objects on the parent's connection."""


def sessions_on(spark: SparkSession) -> Sessions:
    """The maker of sessions on the context of one; it is reused for the next step."""
    global _latest  # noqa: PLW0603
    with _lock:
        found = _latest
        if found is None or found.spark is not spark or found.is_stale:
            found = _latest = Sessions(spark)
        return found


class Sessions:
    """Makes sessions on the context of another one.

    They share its cache if the internals of this Spark release are unknown, and while its catalog cannot be
    reached. Both are logged.

    Args:
        spark: The session whose settings and global views they start with.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._again = float("inf")
        self._shared: _Shared | None = None
        from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # noqa: PLC0415  of an extra

        try:
            self._shared = _Shared(spark)
            trial: Any = self.new()
            if trial._jsparkSession.sharedState().cacheManager().equals(self._shared.cache):  # noqa: SLF001
                raise TypeError("a session has the cache of another")  # noqa: TRY301
        except Py4JNetworkError:
            raise
        except (Py4JError, AttributeError, TypeError) as exc:
            self._shared = None
            if isinstance(exc, Py4JJavaError):  # perhaps the metastore of Hive is down
                self._again = time.monotonic() + AGAIN_SECONDS
            logger.warning(
                'steps share what they cache; a step that must not share should set "session": "own": %s',
                (str(exc).splitlines() or [""])[0],
                extra={"action": "spark_cache_shared"},
            )

    @property
    def is_stale(self) -> bool:
        """Whether to try again with a new one."""
        return time.monotonic() > self._again

    def new(self) -> SparkSession:
        """Make a session; ``clear`` it at its end."""
        made = self.spark.newSession()
        if self._shared is not None:
            sessions: Any = made
            self._shared.give(sessions._jsparkSession)  # noqa: SLF001
        return made

    def clear(self, spark: SparkSession) -> None:
        """Release the cache and the views of a session: threads of Spark's pools may reference it.

        Repeatable. Nothing is raised, even without a JVM.
        """
        sessions: Any = spark
        with suppress(Exception):  # half a dozen unrelated classes of py4j
            sessions._jsparkSession.sessionState().catalog().clearTempTables()  # noqa: SLF001
            if self._shared is not None:
                sessions._jsparkSession.sharedState().cacheManager().clearCache()  # noqa: SLF001


class _Shared:
    """The shared state of a context's sessions, and copies of it with their own cache and global views."""

    def __init__(self, spark: SparkSession) -> None:
        sessions: Any = spark
        self._jvm, state = sessions._jvm, sessions._jsparkSession.sharedState()  # noqa: SLF001
        self.cache, self._views = state.cacheManager(), state.globalTempViewManager()
        state.externalCatalog()  # so that no copy creates another one
        state.streamingQueryStatusListener()
        database = spark.sparkContext.getConf().get("spark.sql.globalTempDatabase", "global_temp")
        self._database = str(database).lower()
        self._made: dict[str, Callable[[], Any]] = {
            _CACHE: self._jvm.org.apache.spark.sql.execution.CacheManager,
            _VIEWS: self._copied_views,
        }
        self._kind = state.getClass()
        self._fields = list(self._read(state))
        unsafe = self._jvm.java.lang.Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
        unsafe.setAccessible(True)
        self._unsafe = unsafe.get(None)
        self._place = sessions._jsparkSession.getClass().getDeclaredField(_PLACE)  # noqa: SLF001
        self._place.setAccessible(True)

    def give(self, session: Any) -> None:
        """Give an unused Java session a copy."""
        copy = self._unsafe.allocateInstance(self._kind)
        for write, value in self._fields:
            write(copy, value() if callable(value) else value)
        self._place.set(session, self._jvm.scala.Option.apply(copy))

    def _copied_views(self) -> Any:
        views = self._jvm.org.apache.spark.sql.catalyst.catalog.GlobalTempViewManager(self._database)
        names = self._views.listViewNames("*")
        for number in range(names.size()):
            if (view := self._views.get(names.apply(number))).isDefined():
                views.create(names.apply(number), view.get(), True)
        return views

    def _read(self, state: Any) -> Iterator[tuple[Callable[[Any, Any], object], Any]]:
        """For each field, how to write it, and its value or a function that makes one."""
        is_static = self._jvm.java.lang.reflect.Modifier.isStatic
        found = set[str]()
        for field in self._kind.getDeclaredFields():
            if is_static(field.getModifiers()):
                continue
            field.setAccessible(True)
            name, kind = field.getName(), field.getType()
            found.add(name)
            if name in self._made:
                yield field.set, self._made[name]
            elif kind.isPrimitive():
                of = kind.getName().capitalize()
                yield getattr(field, f"set{of}"), getattr(field, f"get{of}")(state)
            elif (value := field.get(state)) is not None:
                yield field.set, value
        if missing := self._made.keys() - found:
            raise TypeError(f"the shared state has no {', '.join(sorted(missing))}")


def _leave_to_parent() -> None:
    global _latest, _lock
    _OF_PARENTS.append(_latest)
    _latest, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_leave_to_parent)
