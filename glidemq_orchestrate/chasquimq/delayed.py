"""The member of a delayed job in the sorted set ``delayed``: its name, then its envelope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.errors import DecodeError

_PREFIX: Final = 4


@dataclass(frozen=True, slots=True)
class DelayedMember:
    """A delayed job as stored: the length of its name (32 bits, little endian), the name, the envelope."""

    name: str
    envelope: bytes

    @property
    def packed(self) -> bytes:
        """Its bytes."""
        name = self.name.encode()
        return len(name).to_bytes(_PREFIX, "little") + name + self.envelope

    @classmethod
    def read(cls, data: bytes) -> DelayedMember:
        """Read a member.

        Raises:
            DecodeError: It is too short, or its name is not UTF-8.
        """
        end = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
        if len(data) < max(end, _PREFIX):
            raise DecodeError("the member of a delayed job is cut short")
        try:
            name = data[_PREFIX:end].decode()
        except UnicodeDecodeError:
            raise DecodeError("the name of a delayed job is not UTF-8") from None
        return cls(name, data[end:])
