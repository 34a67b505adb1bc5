"""Names of files for memories, whatever they are called.

A name of small letters and digits is itself.  Of any other, what a person reads is kept and a
digest added, so that no two are the same where a file system takes ``Ada`` for ``ada`` or one form
of ``é`` for the other, and none is longer than it takes, leads elsewhere or means a device.
"""

from __future__ import annotations

import re
import unicodedata
from hashlib import sha256

from memctl.model import MemoryKey

ENDING = ".md"

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}(?<![.])")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])([.].*)?")  # of Windows
_UNFIT = re.compile(r"[^\w.-]+")
_READABLE_BYTES = 80
_DIGITS = 12


def file_name(key: MemoryKey) -> str:
    """The path of a file in the folder: ``ada/kyoto.md``, ``ada/kyoto+agent.memory.md``."""
    part = f"+{_name(key.part)}" if key.part else ""
    return f"{_name(key.user)}/{_name(key.session)}{part}{ENDING}"


def _name(text: str) -> str:
    if not text:
        return "_"
    if _PLAIN.fullmatch(text) and not _DEVICES.fullmatch(text) and not text.endswith(ENDING):
        return text
    readable = _UNFIT.sub("_", unicodedata.normalize("NFC", text)).strip("._-")
    readable = readable.encode()[:_READABLE_BYTES].decode(errors="ignore")
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{readable or '_'}~{digest}"
