"""Rotations: the files of nightly exports, and the rules for the files to keep."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from memctl.encryption import plain_name
from memctl.errors import NotFound, UsageError
from memctl.location import visible
from memctl.storekit.files import sync_folder, system_errors

LATEST = "@latest"
"""The suffix after the name of a rotation that means its newest file."""

_EXTENSIONS = (".ndjson.gz", ".ndjson.zst", ".ndjson")
"""Extensions with several parts; the extension of any other name is its last suffix.

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


@dataclass(frozen=True, slots=True)
class Rotation:
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

    path: Path
    time: datetime
    bytes: int


class Series:
    """The files of one rotation, named as in ``NAME-20261121T031500.ndjson``."""

    def __init__(self, path: Path) -> None:
        """``path`` is the path of the rotation without a time, such as ``NAME.ndjson``."""
        plain = plain_name(path.name)
        extension = next(filter(plain.lower().endswith, _EXTENSIONS), Path(plain).suffix)
        self.folder = path.parent
        self._stem = plain[: len(plain) - len(extension)]
        self._extension = path.name[len(self._stem) :]
        self._form = re.compile(
            re.escape(self._stem) + r"-([0-9]{8}T[0-9]{6})" + re.escape(self._extension)
        )

    def files(self) -> list[RotatedFile]:
        """Return the existing files of the rotation, by the time in their names, newest first.

        Raises:
            MemctlError: the folder cannot be read.
        """
        found = []
        with system_errors(self.folder, "read"):
            for name in self._files():
                if (time := self._time(name)) is not None:
                    path = self.folder / name
                    found.append(RotatedFile(path, time, path.stat().st_size))
        return sorted(found, key=lambda file: file.time, reverse=True)

    def new(self, now: datetime) -> Path:
        """Return the path of a new file for the local time ``now``.

        If a file of this second exists, the path has the time of the next second without a file.
        So a second run in the same second replaces no file, nor does the hour that repeats in
        autumn.
        """
        while True:
            path = self._path(now)
            if not os.path.lexists(path):
                return path
            now += timedelta(seconds=1)

    def expired(self, rotation: Rotation, new: Path) -> list[Path]:
        """Return the paths of the files to remove after ``new`` was written, oldest first.

        ``new`` itself is never among them.

        Raises:
            MemctlError: the folder cannot be read.
        """
        with system_errors(self.folder, "read"):
            there = {time for time in map(self._time, self._files()) if time is not None}
        time = self._time(new.name)
        assert time is not None
        gone = rotation.expired([*there | {time}]) - {time}
        return [self._path(one) for one in sorted(gone)]

    def remove(self, paths: list[Path]) -> Iterator[Path]:
        """Remove files; yield the path of each removed file.

        Raises:
            MemctlError: the operating system refuses to remove a file.
        """
        # The new file must survive a power cut before old files are removed.
        sync_folder(self.folder)
        for path in paths:
            with system_errors(path, "remove"):
                path.unlink(missing_ok=True)
            yield path

    def _path(self, time: datetime) -> Path:
        return self.folder / f"{self._stem}-{time.strftime(_TIME)}{self._extension}"

    def _files(self) -> Iterator[str]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    yield entry.name

    def _time(self, name: str) -> datetime | None:
        found = self._form.fullmatch(name)
        if found is None:
            return None
        try:
            return datetime.strptime(found[1], _TIME)
        except ValueError:
            return None


def latest(text: str) -> Path | None:
    """Return the path of the newest file of the rotation ``NAME`` for the text ``NAME@latest``.

    Returns None for any other text, and if a file has this name.

    Raises:
        NotFound: the rotation has no file.
        MemctlError: the folder cannot be read.
    """
    if not text.endswith(LATEST) or os.path.lexists(text):
        return None
    path = Path(text.removesuffix(LATEST)).expanduser()
    if not (found := Series(path).files()):
        name = visible(str(path))
        raise NotFound(
            f"there is no rotation {name}",
            f"create one with: memctl export STORE -o {name} --rotate daily:7",
        )
    return found[0].path
