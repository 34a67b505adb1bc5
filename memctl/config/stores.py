"""``[stores.NAME]``: aliases, and where their passwords come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from memctl.config import secrets
from memctl.config.keys import refuse_unknown
from memctl.errors import UsageError
from memctl.location import Location
from memctl.registry import parse

_KEYS = ("url", *secrets.keys("password"))


@dataclass(frozen=True, slots=True)
class Alias:
    """A ``[stores.NAME]`` of the configuration."""

    name: str
    url: str
    password: secrets.Source | None = None

    def locate(
        self, environment: Mapping[str, str], timeout: float = secrets.COMMAND_TIMEOUT
    ) -> Location:
        """The store, with its password, for which a command has ``timeout`` seconds.

        Raises:
            UsageError: the password cannot be had, or the URL is none.
        """
        location = parse(self.url)
        if self.password is None:
            return location
        what = f"the password of {self.name!r}"
        password = secrets.fetch(what, self.password, environment, timeout)
        parts = urlsplit(location.url)
        login, _, host = parts.netloc.rpartition("@")
        user = login.partition(":")[0]
        netloc = f"{user}:{quote(password, safe='')}@{host}"
        return replace(location, url=parts._replace(netloc=netloc).geturl())


def read_alias(path: Path, name: str, entry: Any) -> Alias:
    """The alias that a table describes.

    Raises:
        UsageError: it does not describe one.
    """
    place = f"stores.{name}"
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: {place} is not a table", "write [stores.NAME] with url = ...")
    refuse_unknown(path, place + ".", entry, _KEYS)
    if any(not isinstance(value, str) for value in entry.values()) or "url" not in entry:
        raise UsageError(f'{path}: {place} needs url = "..."; every value is a text')
    return Alias(name, entry["url"], secrets.source(path, place, entry, "password"))
