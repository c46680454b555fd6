"""What a value of the inventory may be, and how a refusal says it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PrivateAttr
from pydantic_core import CoreSchema, core_schema

# ---------------------------------------------------------------- what a value may be


@dataclass(frozen=True)
class Checked:
    """Annotation of a text: what is accepted, in words for the person who mistyped it, and the test."""

    accepts: str
    test: Callable[[str], bool]

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        if not self.test(value):
            raise ValueError
        return value


def like(pattern: str) -> Callable[[str], bool]:
    """Return the test whether a whole text matches ``pattern``."""
    compiled = re.compile(pattern, re.ASCII)
    return lambda value: compiled.fullmatch(value) is not None


def _ipv4(value: str) -> bool:
    try:
        return str(ipaddress.IPv4Address(value)) == value
    except ValueError:
        return False


def _ipv4_network(value: str) -> bool:
    address, _, length = value.partition("/")
    return _ipv4(address) and length.isdecimal() and str(int(length)) == length and int(length) <= 32


def _absolute(value: str) -> bool:
    return value.startswith("/") and value.isprintable() and not {"..", "."} & set(value.split("/"))


def _beneath(value: str) -> bool:
    return value.isprintable() and all(part not in ("", ".", "..") for part in value.split("/")) and value[:1] != "-"


Text = Annotated[str, Checked("text on one line, printable characters only", lambda v: v != "" and v.isprintable())]
Value = Annotated[str, Checked("text on one line, not beginning with -", lambda v: v != "" and v.isprintable() and v[0] != "-")]
"""Text that follows an option on a command line, where a dash would make it one."""
Name = Annotated[str, Checked("lower-case letters, digits and -, at most 40", like(r"[a-z0-9][a-z0-9-]{0,39}"))]
Label = Annotated[str, Checked("lower-case letters, digits, . and -, at most 60", like(r"[a-z0-9][a-z0-9.-]{0,59}"))]
Address = Annotated[str, Checked("a host name or an IP address", like(r"[A-Za-z0-9:][A-Za-z0-9._:-]{0,252}"))]
Listen = Annotated[str, Checked("an IPv4 address of the host, or 0.0.0.0", _ipv4)]
AbsolutePath = Annotated[str, Checked("an absolute path without . or .. in it", _absolute)]
RelativePath = Annotated[str, Checked("a path below models_dir, without . or .. in it", _beneath)]
Digest = Annotated[str, Checked("sha256: and 64 lower-case hex digits", like(r"sha256:[0-9a-f]{64}"))]
Repository = Annotated[
    str,
    Checked(
        "registry/path/name without tag or digest",
        like(r"[a-zA-Z0-9][a-zA-Z0-9.-]*(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"),
    ),
]
Tag = Annotated[str, Checked("an image tag such as v0.5.19-cu129", like(r"\w[\w.-]{0,127}"))]
Version = Annotated[str, Checked('a version in quotes, such as "12.9"', like(r"\d+(\.\d+){1,3}"))]
MachineId = Annotated[str, Checked("the 32 hex digits of /etc/machine-id, in quotes", like(r"[0-9a-f]{32}"))]
Url = Annotated[str, Checked("an http or https URL", like(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?"))]
User = Annotated[str, Checked("a login name", like(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}"))]
NeighbourName = Annotated[
    str, Checked("the service's own name, not beginning with lodger-", like(r"(?!lodger-)[A-Za-z0-9][A-Za-z0-9:_.@\\-]*"))
]
Hours = Annotated[
    str, Checked('two times in quotes, such as "22:00-06:00"', like(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d"))
]
Interface = Annotated[str, Checked("a network interface such as eno1", like(r"[A-Za-z][A-Za-z0-9_.-]{0,14}"))]
VirtualAddress = Annotated[str, Checked("an IPv4 address with the length of its network, such as 10.0.0.9/24", _ipv4_network)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int, Field(ge=1, le=604800)]
GpuIndex = Annotated[int, Field(ge=0, le=63)]


class StrictModel(BaseModel):
    """A part of the inventory: frozen, of exact types, with no unknown key."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Named(StrictModel):
    """A part of the inventory that is listed under a name."""

    _name: str = PrivateAttr("")

    @property
    def name(self) -> str:
        """The key under which the inventory lists it."""
        return self._name


_N = TypeVar("_N", bound=Named)


def give_names(items: dict[str, _N]) -> dict[str, _N]:
    """Tell each item the key it is listed under, and return them."""
    for key, item in items.items():
        item._name = key  # the mapping's key is the item's name; nothing else sets it
    return items


NAMED = AfterValidator(give_names)
