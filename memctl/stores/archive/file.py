"""The file of an archive: on a disk, or in object storage."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from memctl.engines.objects.address import is_object, parse_address
from memctl.location import Location
from memctl.storekit.named_file import LocalFile, NamedFile


def file_of(place: Location | str) -> NamedFile:
    """Return the file at the location of an archive, or that a path or URL names.

    Raises:
        UsageError: the URL is not valid.
    """
    follows = True
    if isinstance(place, Location):
        url, path, follows = place.url, place.path, place.follows
    else:
        url, path = (place, Path()) if is_object(place) else ("", Path(place).expanduser())
    if not url:
        return LocalFile(path, follows=follows)
    from memctl.engines.objects.file import ObjectFile  # only for objects

    return ObjectFile(parse_address(url))


def location_of(file: NamedFile, location: Location) -> Location:
    """Return the location of a file in the folder of the archive at ``location``."""
    if location.url:
        address = parse_address(location.url)
        found = replace(location, label=file.label, url=address.sibling(file.name).url)
        return found.with_password(address.secret) if address.secret else found
    return replace(location, label=file.text, path=location.path.with_name(file.name))


def refuse_missing(location: Location) -> None:
    """Refuse the location of an archive that does not exist.

    Raises:
        NotFound: always in such a case.
        MemctlError: the place of the file cannot be reached.
    """
    file = file_of(location)
    if file.stamp() is None:
        os.close(file.open())  # raises, and names what is missing
