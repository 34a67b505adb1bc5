"""memctl at a time that stands still, for screens that are the same each time.

``python -m tests.terminal.frozen history`` runs ``memctl history`` at the time ``FROZEN_AT``, from
which the ids of runs follow, too.
"""

from __future__ import annotations

import os
import secrets
from datetime import datetime, tzinfo

from memctl import cli
from memctl.journal import runs

NOW = datetime.fromisoformat(os.environ["FROZEN_AT"])


class Clock(datetime):
    """A clock that shows one time, with a fraction of a second that differs by the minute."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Clock:
        return cls.fromisoformat(NOW.isoformat()).replace(
            microsecond=NOW.minute * 37 % 1000 * 1000, tzinfo=tz
        )


runs.datetime = Clock  # type: ignore[misc]
secrets.token_hex = lambda size=None: f"{NOW.minute * 53 % 256:02x}" * (size or 1)

if __name__ == "__main__":
    cli.main()
