"""Secrets that are planted in every case, and the search for them in errors, logs and output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.fuzz.violation import Violation, place_of

PASSWORD: Final = "Sesame7"
"""In every password; reserved characters may follow, and ``PASSWORD_END`` after them."""
PASSWORD_END: Final = "Opens9"
PAYLOAD: Final = "Payload4Eyes"
"""In the data and results of jobs."""
ENVIRONMENT: Final = "Environ3Secret"
"""In the environment of the process."""
NEVER: Final = (PASSWORD, PASSWORD_END, ENVIRONMENT)
ALL: Final = (*NEVER, PAYLOAD)


def refuse(where: str, text: str, secrets: tuple[str, ...] = ALL, *, place: str = "") -> None:
    """Raise if a text holds a secret.

    Raises:
        Violation: It does.
    """
    for secret in secrets:
        at = text.find(secret)
        if at >= 0:
            shown = text[max(at - 200, 0) : at + 60]
            raise Violation(f"a secret is in {where}: ...{shown!r}", f"secret in {where} {place}")


def refuse_in_error(exc: BaseException, secrets: tuple[str, ...] = ALL) -> None:
    """Raise if a traceback of the error would show a secret: its causes count too.

    Raises:
        Violation: It would.
    """
    for one in chain_of(exc):
        text = "\n".join([str(one), repr(one), *getattr(one, "__notes__", ())])
        refuse(f"the text of {type(one).__name__}", text, secrets, place=place_of(exc))


def chain_of(exc: BaseException | None) -> Iterator[BaseException]:
    """An error and all that a traceback prints with it."""
    seen: set[int] = set()
    todo = [exc]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo.append(one.__cause__ or (None if one.__suppress_context__ else one.__context__))
        if isinstance(one, BaseExceptionGroup):
            todo.extend(one.exceptions)


class Listener(logging.Handler):
    """Keeps what is logged until it is checked."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)

    def check(self, secrets: tuple[str, ...] = ALL) -> None:
        """Check and forget the records so far.

        Raises:
            Violation: One of them shows a secret.
        """
        records, self.records = self.records, []
        for record in records:
            place = f"{record.filename}:{record.lineno}"
            own = " ".join(str(value) for name, value in record.__dict__.items() if name != "exc_info")
            refuse("a log record", f"{record.getMessage()} {own}", secrets, place=place)
            for one in chain_of(record.exc_info[1] if record.exc_info else None):
                refuse("a logged traceback", f"{one} {one!r}", secrets, place=place)


@contextmanager
def listening() -> Iterator[Listener]:
    """Hears everything that the package logs."""
    logger, heard = logging.getLogger("glidemq_orchestrate"), Listener()
    level, spreads = logger.level, logger.propagate
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield heard
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)
        logger.propagate = spreads
