"""A store of which a copy takes all messages for read ones."""

from __future__ import annotations

from copy import copy

from memctl.dialects.view import Dialect
from memctl.wrappers.wrapper import StoreWrapper


class AllMessages(StoreWrapper):
    """A wrapper from which a conversion takes messages that the framework does not read, too."""

    @property
    def dialect(self) -> Dialect:  # type: ignore[override]
        """The dialect of the store inside, with ``all_messages``."""
        found = copy(self._store.dialect)
        found.all_messages = True
        return found
