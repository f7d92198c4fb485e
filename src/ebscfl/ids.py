"""Names for the numbers that travel through the package."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

ClientId = NewType("ClientId", int)
ClusterId = NewType("ClusterId", int)
RoundId = NewType("RoundId", int)
RunId = NewType("RunId", str)


class Role(enum.Enum):
    """The three parties of the protocol."""

    CLIENT = "client"
    SERVER = "server"
    KDC = "kdc"


@dataclass(frozen=True, order=True)
class Address:
    """Where a message goes: a role and, for clients, which one."""

    role_name: str
    client: int = -1

    @property
    def role(self) -> Role:
        """The role as an enum member."""
        return Role(self.role_name)

    def __str__(self) -> str:
        return f"client {self.client}" if self.role is Role.CLIENT else self.role_name


SERVER = Address(Role.SERVER.value)
KDC = Address(Role.KDC.value)


def client_address(client: int) -> Address:
    """The address of client number ``client``."""
    return Address(Role.CLIENT.value, int(client))
