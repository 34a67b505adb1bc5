"""The receipt of an erase as an HTML page, with the record for programs as its attachment."""

from __future__ import annotations

import base64
import re
import shlex
from datetime import datetime
from pathlib import PurePath
from typing import Any

from memctl.errors import UsageError
from memctl.registry import is_object, spec_of
from memctl.storekit.named_file import NamedFile
from memctl.text.html import environment

_ATTACHMENT = re.compile(rb'href="data:application/json;base64,([A-Za-z0-9+/=]+)"')
_OUTCOMES = {
    "pending": "not begun",
    "begun": "stopped before its end",
    "erased": "erased",
    "partial": "erased in part",
    "failed": "not erased",
    "nothing-there": "nothing there",
}
"""By state of a store, the words of the page."""


def page(record: dict[str, Any], text: bytes, file: NamedFile, messages: int) -> bytes:
    """Return the page of a receipt in UTF-8.

    ``record`` is the content of the receipt, ``text`` the same as JSON.  ``messages`` is the number
    of digests of message ids.
    """
    made = environment("memctl.ops")
    made.filters |= {"kind": _title, "moment": _moment}
    written = made.get_template("receipt.html").render(
        record,
        attached=base64.b64encode(text).decode(),
        attachment=PurePath(file.name).with_suffix(".json").name,
        file=shlex.quote(file.text if is_object(file.text) else file.name),
        message_ids=messages,
        outcomes=_OUTCOMES,
    )
    return written.encode()


def attachment(page: bytes) -> bytes:
    """Return the JSON of the record in a page.

    Raises:
        ValueError: the page has none.
    """
    found = _ATTACHMENT.search(page)
    if found is None:
        raise ValueError("it has no record attached")
    return base64.b64decode(found[1])


def _title(kind: str) -> str:
    try:
        return spec_of(kind).title
    except UsageError:  # of a plugin that is gone
        return kind


def _moment(time: str) -> str:
    return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M} UTC"
