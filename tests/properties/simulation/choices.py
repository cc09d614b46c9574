"""Every decision of a history, made from one seed, and the record of them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Draws from a seed. The same seed draws the same, in any process: texts seed it through SHA-512.

    Attributes:
        trace: What happened, a line for each step.
    """

    def __init__(self, seed: str) -> None:
        self.seed, self.trace = seed, list[str]()
        self._random = random.Random(seed)
        self._tokens = 0

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[self._random.randrange(len(options))]

    def weighted(self, options: Sequence[T], weights: Sequence[float]) -> T:
        """One of them, by weight."""
        return self._random.choices(options, weights)[0]

    def between(self, least: int, most: int) -> int:
        """A whole number; both ends are possible."""
        return self._random.randint(least, most)

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Up to so many of them, each once."""
        return self._random.sample(options, min(most, len(options), self._random.randint(0, most)))

    def token(self) -> str:
        """A token that no one else has."""
        self._tokens += 1
        return f"t{self._tokens}"

    def note(self, text: str) -> None:
        """Write a line of the trace."""
        self.trace.append(text)

    @property
    def digest(self) -> str:
        """A fingerprint of the trace."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]
