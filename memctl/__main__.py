"""``python -m memctl`` and the script ``memctl``: signals are caught before anything is loaded."""

from __future__ import annotations

import os


def main() -> None:
    """The entry point."""
    try:
        from memctl import signals

        signals.catch(signals.leave)
    except KeyboardInterrupt:
        os._exit(130)
    from memctl import cli

    cli.main()


if __name__ == "__main__":
    main()
