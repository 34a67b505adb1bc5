"""The entry point of ``python -m memctl`` and of the script ``memctl``: catches signals first."""

from __future__ import annotations

import os


def main() -> None:
    """Run memctl."""
    if os.name != "posix":
        raise SystemExit("memctl: error: memctl needs Linux or macOS; on Windows, run it in WSL")
    try:
        from memctl.machine import signals

        signals.catch(signals.leave)
    except KeyboardInterrupt:
        os._exit(130)
    from memctl import cli

    cli.main()


if __name__ == "__main__":
    main()
