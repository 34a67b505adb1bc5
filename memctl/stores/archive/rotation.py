"""Rotations: the files of nightly exports, the rules for the files to keep, and the choice of one.

``NAME@CHOICE`` is one file of the rotation ``NAME``: see ``split_choice``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from memctl.encryption import plain_name
from memctl.engines.objects.address import is_object
from memctl.errors import NotFound, UsageError
from memctl.location import Location
from memctl.storekit.named_file import LocalFile, NamedFile
from memctl.stores.archive.file import file_of, location_of
from memctl.text.numbers import count

LATEST = "latest"
"""The choice of the newest file."""

_CHOICE = re.compile(r"(.+)@([\w~-]+)", re.DOTALL)
_FORM = re.compile(
    r"latest(~(?P<before>[0-9]{1,4}))?|oldest|(?P<number>[1-9][0-9]{0,3})"
    r"|(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})|(?P<time>[0-9]{8}T[0-9]{6})"
)
_TIME_IN_NAME = re.compile(r"-([0-9]{8}T[0-9]{6})\.")
_SHOWN = 3
"""The number of files that an error names."""
_EXTENSIONS = (".ndjson.gz", ".ndjson.zst", ".ndjson")
"""Extensions with several parts; other names have the last suffix as extension.

``.age`` may follow any extension.
"""
_TIME = "%Y%m%dT%H%M%S"

Period = Callable[[datetime], object]
_PERIODS: dict[str, Period] = {
    "last": lambda time: time,
    "hourly": lambda time: (time.date(), time.hour),
    "daily": lambda time: time.date(),
    "weekly": lambda time: time.isocalendar()[:2],
    "monthly": lambda time: (time.year, time.month),
    "yearly": lambda time: time.year,
}
_KEEP = re.compile(r"([a-z]+):([1-9][0-9]{0,5})")


class Rotation(Struct, frozen=True):
    """The rules for the files to keep, as pairs of a kind of period and a number.

    For ``("daily", 7)``, the newest file of each of the last seven days with a file is kept.
    """

    keep: tuple[tuple[str, int], ...]

    def expired(self, times: list[datetime]) -> set[datetime]:
        """Return the times whose files need not be kept; ``times`` are the times of all files.

        The rule is from ``restic forget``: periods without a file do not count.  If there are
        fewer periods than requested, the oldest file is kept, too.
        """
        newest_first = sorted(times, reverse=True)
        kept: set[datetime] = set()
        for name, number in self.keep:
            kept |= _of_each(newest_first, _PERIODS[name], number)
        return set(times) - kept


def _of_each(newest_first: list[datetime], period: Period, number: int) -> set[datetime]:
    """Return the newest time of each of the last ``number`` periods with a file.

    If there are fewer periods, the oldest time is included, too.
    """
    kept: set[datetime] = set()
    before: object = None
    for time in newest_first:
        if len(kept) == number:
            break
        if period(time) != before or time == newest_first[-1]:
            kept.add(time)
            before = period(time)
    return kept


def parse_rotation(text: str) -> Rotation:
    """Parse the value of ``--rotate``, such as ``daily:7,weekly:4``.

    Raises:
        UsageError: the text is not valid.
    """
    keep: dict[str, int] = {}
    for part in text.split(","):
        found = _KEEP.fullmatch(part.strip())
        if not found or found[1] not in _PERIODS or found[1] in keep:
            raise UsageError(
                f"--rotate {text!r} is not valid at {part.strip()!r}",
                "write daily:7,weekly:4, the numbers to keep of " + ", ".join(_PERIODS),
            )
        keep[found[1]] = int(found[2])
    return Rotation(tuple(keep.items()))


class RotatedFile(NamedTuple):
    """A file of a rotation, with the time in its name and its size."""

    file: NamedFile
    time: datetime
    bytes: int


class Series:
    """The files of one rotation, named as in ``NAME-20261121T031500.ndjson``."""

    def __init__(self, file: NamedFile) -> None:
        """``file`` has the name of the rotation, without a time, such as ``NAME.ndjson``."""
        plain = plain_name(file.name)
        extension = next(filter(plain.lower().endswith, _EXTENSIONS), Path(plain).suffix)
        self._file = file
        self._stem = plain[: len(plain) - len(extension)]
        self._extension = file.name[len(self._stem) :]
        self._form = re.compile(
            re.escape(self._stem) + r"-([0-9]{8}T[0-9]{6})" + re.escape(self._extension)
        )

    def files(self) -> list[RotatedFile]:
        """Return the existing files of the rotation, by the time in their names, newest first.

        Raises:
            MemctlError: the folder cannot be listed.
        """
        found = [
            RotatedFile(self._file.sibling(name), time, size)
            for name, size, _ in self._file.siblings()
            if (time := self._time(name)) is not None
        ]
        return sorted(found, key=lambda one: one.time, reverse=True)

    def new(self, now: datetime) -> NamedFile:
        """Return a new file for the local time ``now``.

        If a file of this second exists, the name has the time of the next second without a file.
        So a second run in the same second replaces no file, nor does the hour that repeats in
        autumn.

        Raises:
            MemctlError: the place of the files cannot be reached.
        """
        while True:
            file = self._at(now)
            if not file.exists():
                return file
            now += timedelta(seconds=1)

    def expired(self, rotation: Rotation, new: NamedFile) -> list[NamedFile]:
        """Return the files to remove after ``new`` was written, oldest first.

        ``new`` itself is never among them.

        Raises:
            MemctlError: the folder cannot be listed.
        """
        time = self._time(new.name)
        assert time is not None
        gone = rotation.expired([*{one.time for one in self.files()} | {time}]) - {time}
        return [self._at(one) for one in sorted(gone)]

    def remove(self, files: list[NamedFile]) -> Iterator[NamedFile]:
        """Remove files; yield each removed file.

        Raises:
            MemctlError: a file cannot be removed.
        """
        # The new file must survive a power cut before old files are removed.
        self._file.sync()
        for file in files:
            file.remove()
            yield file

    def _at(self, time: datetime) -> NamedFile:
        return self._file.sibling(f"{self._stem}-{time.strftime(_TIME)}{self._extension}")

    def _time(self, name: str) -> datetime | None:
        found = self._form.fullmatch(name)
        if found is None:
            return None
        try:
            return datetime.strptime(found[1], _TIME)
        except ValueError:
            return None


def split_choice(text: str) -> tuple[str, str]:
    """Split ``NAME@CHOICE``, which names one file of a rotation, into the name and the choice.

    The choice is ``latest``, ``latest~N`` for the file N before, ``oldest``, ``N`` for the N-th
    newest, a day as ``2026-11-25`` for its newest file, or a time as in the names of the files.
    The choice is not checked.  A text of another form has an empty choice.
    """
    found = _CHOICE.fullmatch(text)
    return (found[1], found[2]) if found else (text, "")


def with_choice(text: str, choice: str) -> str:
    """Return the text for one file of the rotation that ``text``, a path or URL, names."""
    if not is_object(text):
        return f"{text}@{choice}"
    name, mark, options = text.partition("?")
    return f"{name}@{choice}{mark}{options}"


def choice_of(file: RotatedFile) -> str:
    """Return the choice that names this file whatever files come and go: its time."""
    return file.time.strftime(_TIME)


def lasting(text: str, location: Location) -> str:
    """Return ``NAME@TIME`` for ``NAME@CHOICE`` of which ``location`` is the chosen file."""
    file = LocalFile(location.path) if location.path.name else file_of(location)
    time = _TIME_IN_NAME.findall(file.name)[-1]
    return with_choice(split_choice(text)[0], time)


def chosen_path(text: str) -> Path | None:
    """Return the path of the file of a rotation that ``text`` chooses, as in ``NAME@latest``.

    Returns None for a text of another form, and for the name of an existing file.

    Raises:
        NotFound: there is no rotation, or the rotation has no such file.
        MemctlError: the folder cannot be read.
    """
    name, choice = split_choice(text)
    if not choice or os.path.lexists(text):
        return None
    path = Path(name).expanduser()
    if not (_FORM.fullmatch(choice) or (path.parent.is_dir() and Series(LocalFile(path)).files())):
        return None
    return path.with_name(_chosen(LocalFile(path), choice).name)


def chosen(location: Location) -> Location:
    """Return the location of the object of a rotation that ``location`` chooses.

    Any other location is returned unchanged.  The bucket is listed, so ``location`` needs the
    credentials.

    Raises:
        NotFound: there is no rotation, or the rotation has no such object.
        MemctlError: the bucket cannot be listed.
    """
    if not location.url or location.kind != "archive":
        return location
    file = file_of(location)
    name, choice = split_choice(file.name)
    return location_of(_chosen(file.sibling(name), choice), location) if choice else location


def _chosen(file: NamedFile, choice: str) -> NamedFile:
    """Return the chosen file of the rotation that has the name of ``file``.

    Raises:
        NotFound: there is no rotation, or the rotation has no such file.
    """
    if not (files := Series(file).files()):
        raise NotFound(
            f"there is no rotation {file.label}",
            f"create one with: memctl export STORE -o {shlex.quote(file.label)} --rotate daily:7",
        )
    found = _matching(files, choice)
    if found is None:
        newest = ", ".join(f"@{choice_of(one)}" for one in files[:_SHOWN])
        raise NotFound(
            f"the rotation {file.label} has no file @{choice}",
            f"the newest of {count(len(files), 'file')}: {newest}; @latest, @latest~1, @oldest, "
            "@3 and @YYYY-MM-DD name one, too",
        )
    return found.file


def _matching(files: list[RotatedFile], choice: str) -> RotatedFile | None:
    """Return the file that ``choice`` means; None if no file has the choice."""
    form = _FORM.fullmatch(choice)
    if form is None:
        return None
    if form["day"]:
        return next((one for one in files if f"{one.time:%Y-%m-%d}" == choice), None)
    if form["time"]:
        return next((one for one in files if choice_of(one) == choice), None)
    if choice == "oldest":
        return files[-1]
    at = int(form["number"]) - 1 if form["number"] else int(form["before"] or 0)
    return files[at] if at < len(files) else None
