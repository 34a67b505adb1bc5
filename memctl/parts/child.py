"""The start of a process that runs a part: its bond to the supervisor, and its first checks."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from msgspec import Struct

from memctl.errors import MemctlError, UsageError
from memctl.machine.system import PART_VARIABLE
from memctl.version import __version__

_PR_SET_PDEATHSIG = 1


class Orders(Struct, frozen=True):
    """The orders of the supervisor to this process: see ``memctl.parts.part.Part``."""

    version: str
    stores: dict[str, str]
    state: str
    holds: list[dict[str, Any]]
    """The holds of the configuration where the run was divided, as tables."""

    def refusal(self) -> MemctlError | None:
        """Return the error if another version of memctl has divided the run; else None."""
        if self.version == __version__:
            return None
        return UsageError(
            f"memctl {self.version} has divided this run; here is memctl {__version__}",
            "install one version of memctl on all machines",
        )

    def check_store(self, text: str, label: str) -> None:
        """Refuse a store whose location here is not that of the driver of the run.

        ``text`` is the store as the user wrote it, and ``label`` that of its location here.

        Raises:
            UsageError: the labels differ.
        """
        expected = self.stores.get(text, label)
        if expected != label:
            raise UsageError(
                f"{text!r} is {label} here, and {expected} where the run was divided",
                "use one configuration on all machines",
            )


def begin() -> Orders:
    """Let this process die with its supervisor; return what the supervisor told it.

    The process ends at once if the supervisor is gone.
    """
    orders = json.loads(os.environ.pop(PART_VARIABLE))
    if sys.platform == "linux":
        _die_with_parent()
    if os.getppid() != orders["parent"]:
        os._exit(128 + signal.SIGTERM)
    holds = orders.get("holds", [])  # another version of memctl, which is refused, has none
    return Orders(orders["version"], orders["stores"], orders["state"], holds)


def _die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    import ctypes  # other parts of memctl do not need it

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
