"""``memctl browse``: looks through a store in the terminal."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from memctl.commands._context import Run
from memctl.commands._journal import run_options
from memctl.commands._options import (
    MaxDeleteOption,
    PathOption,
    SessionOption,
    StoreArgument,
    UserOption,
    guarding,
    opens_stores,
)
from memctl.commands._parameters import option
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import (
    interrupted,
    narrowed_for_change,
    output_of,
    readable,
    wait_for,
)
from memctl.config.offload import read_offload
from memctl.errors import Interrupted, UsageError
from memctl.location import Location, redact_value
from memctl.machine import signals
from memctl.ops.export.run import ExportOptions
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.text.values import deletion_limit

if TYPE_CHECKING:
    from memctl.browser.app import Browser
    from memctl.browser.source import Writing


_PATIENCE = 2.0
"""The seconds that the browser has to end after its terminal is gone."""


@partial(opens_stores, reports=False)
def browse(
    run: Run,
    store: StoreArgument,
    user: UserOption = None,
    session: SessionOption = None,
    ascii_: Annotated[bool, option("--ascii", "Draw with ASCII characters alone.")] = False,
    path: PathOption = None,
    write: Annotated[
        bool, guarding("--write", "Mark, delete, export and offload what is selected; undo runs.")
    ] = False,
    max_delete: MaxDeleteOption = None,
) -> None:
    """Look through a store in the terminal; --write changes it.

    Shows memories, conversations, hits of searches, marks, findings and runs. The key ? lists the
    keys, x shows the commands for what is selected, q quits. With --write, keys do what the
    commands do: a deletion shows what would go, and asks; memctl undo restores it.

    Examples:
      memctl browse agents.db
      memctl browse prod --user ada
      memctl browse agents.db --write --max-delete 10%
    """
    place = run.locate(store)
    where = Selection(users=frozenset(user or ()), sessions=frozenset(session or ()))
    writing = None
    if write:
        writing = _writing(run, store, narrowed_for_change(place, where, path), max_delete)
    elif max_delete is not None:
        raise UsageError("--max-delete needs --write", "add --write")
    piped = place.kind == "stdio"
    _require_terminal(piped=piped)
    _require_textual()
    from memctl.browser.app import Browser  # Textual is slow to load, and optional
    from memctl.browser.source import Notices, Source

    notices = Notices(run.output.timeout)
    argument = "STORE" if piped else redact_value(store)
    with readable(place, where, path) as location, _keyboard(piped=piped):
        source = Source(
            *(argument, location, where, partial(make_store, location), notices),
            *(run.address, piped, path, writing),
        )
        browser = Browser(source, ascii_only=ascii_)
        try:
            wait_for(_browse(browser))
        finally:
            for text in notices.warnings:
                run.output.warn(text)
            for action in browser.acted:
                (run.output.warn if action.failed else run.output.note)(action.told)
    for command in browser.copied:
        sys.stdout.write(f"{command}\n")
    if browser.failure is not None:
        raise browser.failure


def _writing(run: Run, store: str, location: Location, max_delete: str | None) -> Writing:
    """Return what actions need to change a store as the commands do.

    Raises:
        UsageError: ``--max-delete`` is not a limit, or the configuration is not valid.
    """
    from memctl.browser.source import Writing  # as slow to load as the browser

    deletion_limit(max_delete)  # before the browser starts

    return Writing(
        lambda observer: run_options(
            run, store, dry_run=False, max_delete=max_delete, observer=observer
        ),
        lambda change: ChangeOutcome[Any](location).watch(change).error(),
        lambda to: read_offload(run.configuration(), {"to": to or None}),
        lambda: ExportOptions(must_exist=True, encryption=run.encryption()),
        partial(output_of, run),
    )


async def _browse(browser: Browser) -> None:
    """Run the browser; a signal ends it as the key q does, so that the screen is restored.

    Raises:
        Interrupted: the terminal is gone.
    """
    gone = asyncio.Event()
    tell = partial(asyncio.get_running_loop().call_soon_threadsafe, gone.set)
    watched = tell, lambda: browser.is_acting
    threading.Thread(target=_watch_terminal, args=watched, daemon=True).start()
    running = asyncio.ensure_future(browser.run_async())
    hung_up = asyncio.ensure_future(gone.wait())
    try:
        await asyncio.wait([running, hung_up], return_when=asyncio.FIRST_COMPLETED)
        if gone.is_set():
            raise interrupted(signal.SIGHUP, goes_on=False)
        await running
    except (asyncio.CancelledError, Interrupted):
        await browser.stop_action()
        browser.exit()
        await running
        raise
    finally:
        hung_up.cancel()
        await browser.close_stores()


def _watch_terminal(tell: Callable[[], object], is_acting: Callable[[], bool]) -> None:
    """Call ``tell`` when the terminal of stdin is gone, and then end the process if it stays.

    It may stay as long as ``is_acting`` returns True.

    Textual reads the end of a closed terminal again and again.  When it cannot draw any more, it
    may wait for ever.
    """
    poll = select.poll()
    poll.register(0, 0)
    if any(found & select.POLLHUP for _, found in poll.poll()):
        with suppress(RuntimeError):  # the browser has ended
            tell()
        time.sleep(_PATIENCE)
        while is_acting():
            time.sleep(_PATIENCE)
        signals.leave(signal.SIGHUP)


def _require_terminal(*, piped: bool) -> None:
    """Refuse to run without a terminal; with ``piped``, stdin is the store.

    Raises:
        UsageError: there is no terminal, or it cannot move its cursor.
    """
    hint = "use inspect --messages, or export --as html for a page that a screen reader can read"
    if not (sys.stderr.isatty() and (piped or sys.stdin.isatty())):
        raise UsageError("browse needs a terminal on stdin and stderr", hint)
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise UsageError("the terminal cannot move its cursor: TERM is not set, or dumb", hint)


def _require_textual() -> None:
    """Refuse to run without Textual.

    Raises:
        UsageError: the extra ``browse`` is not installed.
    """
    from importlib.util import find_spec

    if find_spec("textual") is None:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            "browse needs the library Textual, which is not installed", install_command("browse")
        )


@contextmanager
def _keyboard(*, piped: bool) -> Iterator[None]:
    """Make the terminal the standard input within the block, if a pipe was read from it.

    Raises:
        UsageError: the process has no terminal.
    """
    if not piped:
        yield
        return
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError as error:
        raise UsageError(
            "browse needs a terminal: /dev/tty cannot be opened", "write the pipe to a file first"
        ) from error
    before = os.dup(0)
    os.dup2(terminal, 0)
    os.close(terminal)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
