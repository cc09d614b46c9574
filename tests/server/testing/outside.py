"""The world outside of the steps in ``chaos_steps``: a folder per campaign."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FOLDER: Final = "CHAOS_STEPS_FOLDER"


def folder() -> Path:
    """Where the steps leave what they do."""
    return Path(os.environ[FOLDER])


def claim(name: str) -> bool:
    """Whether nobody has claimed it before."""
    try:
        os.close(os.open(folder() / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


async def post(to: str, text: str) -> None:
    """Send a message."""
    await send(to, text)


async def send(to: str, text: str) -> None:
    """Send a message, really."""


class Bank:
    """A client."""

    def pay(self, order: int) -> None:
        """Pay."""

    @staticmethod
    def close(order: dict[tuple[int, int], int]) -> None:
        """Close an account."""

    @classmethod
    def audit(cls) -> str:
        """Look at it."""
        return cls.__name__


bank: Final = Bank()
