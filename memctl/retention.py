"""Policies of retention: the selected messages, the action, and the archive."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from memctl.encryption import plain_name
from memctl.model import ToolPairPolicy
from memctl.selection import Selection

DATE, TIME = "{date}", "{time}"
"""The placeholders in the name of an archive: the local date and time of the run."""
_EXTENSIONS = (".ndjson", ".ndjson.gz", ".ndjson.zst")


class PolicyAction(StrEnum):
    """What becomes of the data of a policy after they are in the archive."""

    DELETE = "delete"
    COMPRESS = "compress"
    """The selected messages of a memory are replaced by their summary."""
    ERASE = "erase"
    """Users whose newest message is older than the selection says are erased."""
    PRUNE = "prune"
    """Old checkpoints of LangGraph, or archived memory files of AgentScope Java, are deleted."""
    OFFLOAD = "offload"
    """Large contents of the selected messages become files; there is no archive."""


class Policy(Struct, frozen=True):
    """A policy of retention, from ``[[retention]]`` of the configuration file.

    ``store`` is an alias.  ``archive`` is the name of the archive, with placeholders.  ``where`` is
    the selection, with ages that count back from the time at which the policy was read.  ``limit``
    is the largest number of messages to remove in a run; if its second element is True, a
    percentage.  Without ``backup``, the run cannot be undone.

    ``summarizer``, ``keep_recent``, ``trigger_tokens`` and ``trigger_messages`` are for COMPRESS.
    ``blobs`` is the place of the files of OFFLOAD; ``larger``, ``keep`` (in bytes) and
    ``url_prefix`` are its rule.
    """

    name: str
    store: str
    action: PolicyAction
    archive: str
    where: Selection
    pairs: ToolPairPolicy = ToolPairPolicy.SPLIT
    limit: tuple[float, bool] | None = None
    backup: bool = True
    summarizer: str = "extractive"
    keep_recent: int = 3
    trigger_tokens: int | None = None
    trigger_messages: int | None = None
    blobs: str = ""
    larger: int = 0
    keep: int = 0
    url_prefix: str = ""
    archive_alias: str = ""
    """The alias that has ``archive`` as its URL, and the source of its password; empty without."""

    @property
    def limit_text(self) -> str:
        """The limit as the user writes it, such as ``20%``; empty without a limit."""
        return "" if self.limit is None else f"{self.limit[0]:g}{'%' if self.limit[1] else ''}"

    def archive_name(self, now: datetime, number: int = 1) -> str:
        """Return the name of the archive of a run at the local time ``now``.

        From the second archive of this name on, ``number`` is in the name, before the extension.
        """
        text = self.archive.replace(DATE, f"{now:%Y-%m-%d}").replace(TIME, f"{now:%H%M%S}")
        if number == 1:
            return text
        url, mark, query = text.partition("?") if "://" in text else (text, "", "")
        plain = plain_name(url)
        extension = max(filter(plain.lower().endswith, _EXTENSIONS), key=len, default="")
        stem = plain[: len(plain) - len(extension)]
        end = url[len(stem) :]
        return f"{stem}-{number}{end}{mark}{query}"


def is_archive_name(text: str) -> bool:
    """Return whether a name or URL has the extension of an archive, which may be encrypted."""
    url = text.partition("?")[0] if "://" in text else text
    return plain_name(url).lower().endswith(_EXTENSIONS)
