"""What is wrong with documents that cannot be read."""

from __future__ import annotations

from memctl.errors import BadData
from memctl.model import Finding, MemoryKey


def damaged(owner: tuple[str, str], error: BadData) -> Finding:
    """A session state that is cut off, no JSON, or misshapen; the error names it."""
    return Finding("damaged-state", MemoryKey(*owner), detail=error.message)
