"""How the session of a step ended before the step."""

from __future__ import annotations


class SessionGone(Exception):
    """The session, or the process that has it, ended while a step ran.

    Attributes:
        explanation: Why, and what to do, if what the step met tells it.
        is_alone: Whether no other step was in it.
    """

    is_alone = False

    def __init__(self, what: str, explanation: str = "") -> None:
        super().__init__(what)
        self.explanation = explanation


class SessionClosed(SessionGone):
    """The session of this step was closed, and no other: it was no loss of a driver, which would be free."""


class SessionUnfit(SessionGone):
    """This step cannot go on in a session that others have used; in another one it can."""
