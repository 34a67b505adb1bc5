"""Support for running commands: the event loop, signals, stores, the record of a run."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from memctl.commands._context import Run
from memctl.commands._values import recipients
from memctl.encryption import EXTENSION
from memctl.errors import (
    BadData,
    Interrupted,
    MemctlError,
    NotFound,
    Unavailable,
    UsageError,
)
from memctl.location import Location, visible
from memctl.machine import signals
from memctl.ops.stop import Stop
from memctl.selection import Selection
from memctl.storekit.files import recognise, temporary_folder
from memctl.storekit.named_file import LocalFile, NamedFile
from memctl.stores.archive.file import file_of, location_of
from memctl.stores.archive.rotation import (
    LATEST,
    RotatedFile,
    Series,
    choice_of,
    split_choice,
    with_choice,
)
from memctl.text.numbers import count

if TYPE_CHECKING:
    from memctl.embedder import Embedder
    from memctl.inference.tokens import TokenCounter
    from memctl.summarizer import Summarizer

T = TypeVar("T")


def wait_for(
    work: Coroutine[Any, Any, T],
    stop: Stop | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> T:
    """Run an operation to its end in an event loop; return its result.

    With ``stop``, the first signal asks an operation that can stop early to do so, and the second
    signal cancels the operation.  Without ``stop``, and if the operation cannot stop early, the
    first signal cancels the operation.  With ``stop``, ``goes_on`` returns whether the same
    command, run again, does the rest.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP came, and the operation has ended.
    """
    # Libraries log errors of cancelled connections; memctl's own error is enough.
    logging.getLogger().addHandler(logging.NullHandler())
    gc.freeze()  # see cli.main
    gc.enable()
    try:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(work)
            heard: list[signal.Signals] = []
            hear = partial(_hear, task, stop or Stop(), heard)
            with _woken(loop), signals.caught(partial(loop.call_soon_threadsafe, hear)):
                return runner.run(_ended(task, heard, lambda: stop is not None and goes_on()))
    finally:
        work.close()  # if a signal came before the start


@contextmanager
def _woken(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let a signal wake the loop at once.

    Python runs its signal handlers in the main thread.  A signal in another thread, or just before
    the loop waits, does not end the wait: the handlers would run after the next event.
    """
    reading, writing = socket.socketpair()
    with reading, writing:
        for end in (reading, writing):
            end.setblocking(False)
        loop.add_reader(reading, reading.recv, 4096)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reading)


def _hear(
    task: asyncio.Task[Any], stop: Stop, heard: list[signal.Signals], number: signal.Signals
) -> None:
    heard.append(number)
    if stop.cooperative and not stop.asked:
        stop.ask()
    else:
        task.cancel()


async def _ended(
    task: asyncio.Task[T], heard: list[signal.Signals], goes_on: Callable[[], bool]
) -> T:
    try:
        return await task
    except (asyncio.CancelledError, Interrupted) as end:
        if not heard:
            raise
        raise interrupted(heard[0], goes_on=goes_on()) from end
    except Exception as end:
        # A cancelled driver may raise an error of its own, of any class.
        told = isinstance(end, MemctlError) and not isinstance(end, Unavailable)
        if told or not (heard and task.cancelling()):
            raise
        raise interrupted(heard[0], goes_on=goes_on()) from end


def interrupted(number: signal.Signals, *, goes_on: bool) -> Interrupted:
    """Return the error of a run that a signal has stopped.

    ``goes_on`` tells that the same command, run again, does the rest.
    """
    hint = "what was reported as written is complete"
    if goes_on:
        hint += "; run the same command again: it continues"
    error = Interrupted(f"stopped by {number.name}", hint)
    error.exit_code = 128 + number
    return error


def narrowed(location: Location, where: Selection, path: str | None) -> Location:
    """Return a location with options that name the selected memory of a session state.

    ``path`` is the path of the memory in the state.  A state_dict does not name its memory, so the
    only user and the only session of ``where`` become options, too.
    """
    from memctl.registry import spec_of  # imported late, as in ``make_target``

    options = dict(location.options)
    if path is not None and "path" in spec_of(location.kind).options:
        options["path"] = path
    if location.kind == "state" or (
        location.kind == "agentscope2-files" and not location.path.is_dir()
    ):
        for name, values in (("user", where.users), ("session", where.sessions)):
            if len(values) == 1:
                options[name] = next(iter(values))
    return replace(location, options=options)


def changeable(run: Run, store: str, where: Selection, path: str | None) -> Location:
    """Return the location of a store that the command will change.

    ``store`` is the name, URL or path that the user wrote.  ``where`` and ``path`` name the memory
    of a session state; see ``narrowed``.

    Raises:
        UsageError: the store is stdin, or there is no such store.
    """
    return narrowed_for_change(run.locate(store), where, path)


def narrowed_for_change(location: Location, where: Selection, path: str | None) -> Location:
    """Return the location of a store that the command will change; see ``narrowed``.

    Raises:
        UsageError: the store is stdin.
    """
    location = narrowed(location, where, path)
    if location.kind == "stdio":
        raise UsageError("stdin cannot be changed", "name a file or a URL")
    return location


def output_of(run: Run, output: str) -> str:
    """Return the path or URL, with its secret, if ``output`` is an alias of an archive.

    Any other ``output`` is returned unchanged.

    Raises:
        UsageError, NotFound: as ``Config.locate``.
    """
    alias = run.configuration().stores.get(output)
    if alias is None or split_choice(alias.url)[1] or alias.location().kind != "archive":
        return output
    from memctl import config  # only needed for an alias

    location = alias.locate(config.environment())
    return location.url or str(location.path)


def encrypting(location: Location, encrypt_to: list[str] | None) -> Location:
    """Return the location of a new archive that ``--encrypt-to`` encrypts, if it is given.

    Raises:
        UsageError: a value is not a public key, or the target would not be encrypted.
    """
    if not encrypt_to:
        return location
    keys = replace(location.encryption, recipients=recipients(encrypt_to))
    if location.kind == "stdio":
        return replace(location, path=Path(f"stdout.ndjson{EXTENSION}"), encryption=keys)
    if location.kind != "archive" or not location.encrypts:
        raise UsageError(
            f"{location.label} would not be encrypted", "name an archive: NAME.ndjson.zst.age"
        )
    return replace(location, encryption=keys)


@contextmanager
def readable(location: Location, where: Selection, path: str | None) -> Iterator[Location]:
    """Yield the location of a store to read; for stdin, a temporary file with its content.

    ``where`` and ``path`` name the memory of a session state; see ``narrowed``.

    Raises:
        NotFound: the location is the name of nightly exports, not of one file.
        BadData: stdin holds neither an archive nor a state_dict.
        Unavailable: the disk has no room for the copy of stdin.
    """
    if location.kind != "stdio":
        _refuse_rotation(location)
        yield narrowed(location, where, path)
        return
    with temporary_folder() as folder:
        spooled = folder / "stdin"
        try:
            with spooled.open("wb") as spool:
                shutil.copyfileobj(sys.stdin.buffer, spool)
        except OSError as error:
            raise Unavailable(
                f"cannot write stdin to {folder}: {error.strerror}",
                "set TMPDIR to a folder with more space",
            ) from error
        recognised = recognise(spooled)
        if recognised is None:
            from memctl.layouts import foreign  # only for errors

            if named := foreign.of_file(spooled):
                raise named.refusal("stdin")
            raise BadData(
                "stdin holds neither an archive nor a state_dict",
                "check the command before the pipe",
            )
        kind, suffix = recognised
        found = replace(location, kind=kind, path=spooled.rename(spooled.with_suffix(suffix)))
        yield narrowed(found, where, path)


def rotation(location: Location) -> list[RotatedFile]:
    """Return the files of ``export --rotate`` that a location names, newest first.

    The result is empty if the location names an existing file, or no such files.

    Raises:
        MemctlError: the folder cannot be listed.
    """
    file = _file_at(location)
    return [] if file is None or file.exists() else Series(file).files()


def has_place(location: Location) -> bool:
    """Return whether the folder of a file exists; the place of an object may be missing."""
    return _file_at(location) is not None


def _file_at(location: Location) -> NamedFile | None:
    """Return the file that a location names; None if the location is no file, or has no folder."""
    if location.path.name:
        return LocalFile(location.path) if location.path.parent.is_dir() else None
    return file_of(location) if location.kind == "archive" else None


def files_of(run: Run, name: str) -> list[tuple[str, Location]]:
    """Return the name and location of a store, or of all files if it is the name of a rotation.

    If an archive has the name itself, it comes first.  A file of an alias is named by the alias,
    which has the secrets, and the time of the file.

    Raises:
        MemctlError: as ``Run.locate``, or the folder cannot be listed.
    """
    location = run.locate(name)
    file = _file_at(location)
    if file is None:
        return [(name, location)]
    exists = file.exists()
    rotated = Series(file).files() if location.kind == "archive" or not exists else []
    own = [(name, location)] if exists or not rotated else []
    is_alias = name in run.configuration().stores
    return own + [
        (
            with_choice(name, choice_of(one)) if is_alias else one.file.text,
            location_of(one.file, location),
        )
        for one in rotated
    ]


def _refuse_rotation(location: Location) -> None:
    """Refuse to read a location that names the files of ``export --rotate``, not one file.

    Raises:
        NotFound: the location names such files.
    """
    try:
        files = rotation(location)
    except Unavailable:
        if location.path.name:
            raise
        return  # the bucket may be readable, but not listable
    if files:
        label, newest = location.label, visible(files[0].file.name)
        # The label lacks the secret, which an alias gave.
        named = "ALIAS" if urlsplit(location.url).password else label
        name = with_choice(named, LATEST)
        raise NotFound(
            f"{label} does not exist; it is the name of a rotation ({count(len(files), 'file')})",
            f"use {name} for its newest file, {newest}",
        )


@contextmanager
def writable(location: Location) -> Iterator[Location]:
    """Yield the location of a store to write; for stdout, a temporary archive.

    The archive is copied to stdout when the context ends.

    Raises:
        Unavailable: the disk has no room for the archive.
    """
    if location.kind != "stdio":
        yield location
        return
    with temporary_folder() as folder:
        path = folder / (location.path.name or "stdout.ndjson")
        yield replace(location, kind="archive", path=path)
        if path.exists():
            with path.open("rb") as whole:
                shutil.copyfileobj(whole, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def named_embedder(run: Run, name: str | None) -> Embedder | None:
    """Return the configured embedder ``name``, not yet opened; None if ``name`` is None.

    Raises:
        UsageError: the embedder is not configured, or its configuration is not valid.
    """
    if name is None:
        return None
    from memctl import config  # only needed for facts
    from memctl.embedders.registry import make_embedder

    configured = run.configuration().embedder(name)
    return make_embedder(configured.settings, configured.key(config.environment()))


def named_summarizer(run: Run, name: str, prompt: str | None = None) -> Summarizer:
    """Return the configured summarizer ``name``, with the instructions ``prompt`` if given.

    Raises:
        UsageError: the summarizer is not configured, or its configuration is not valid.
    """
    from memctl import config  # only needed to summarize
    from memctl.summarizers.registry import make_summarizer

    configured = run.configuration().summarizer(name)
    return make_summarizer(configured.settings, configured.key(config.environment()), prompt)


def token_counter(run: Run, name: str) -> TokenCounter:
    """Return the token counter of the summarizer ``name``; neither its key nor its model is used.

    Raises:
        UsageError: as ``Config.summarizer`` and ``TokenCounter``.
    """
    settings = run.configuration().summarizer(name).settings
    from memctl.inference.settings import path_of  # only to count tokens
    from memctl.inference.tokens import TokenCounter

    return TokenCounter(path_of(settings.options.get("tokenizer", "")))
