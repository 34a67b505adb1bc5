"""A store of which a copy takes all messages for read ones."""

from __future__ import annotations

from memctl.dialects.view import Dialect
from memctl.wrappers.wrapper import StoreWrapper


class AllMessages(StoreWrapper):
    """A wrapper from which a conversion takes messages that the framework does not read, too."""

    @property
    def dialect(self) -> Dialect:  # type: ignore[override]
        """The dialect of the store inside, with ``all_messages``."""
        return self._store.dialect.with_all_messages()
