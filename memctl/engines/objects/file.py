"""An object as a file with a name: staged when it is read, streamed in parts when it is written.

The clients of buckets have the credentials, endpoints and timeouts.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from hashlib import file_digest, md5, sha256
from importlib import import_module
from pathlib import Path
from threading import Condition, Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from memctl.engines import objects
from memctl.engines.objects.address import AZ, GS, S3, Address, is_endpoint
from memctl.engines.objects.errors import changed, code_of, object_errors, status_of
from memctl.errors import Lost, MemctlError, NotFound, PasswordMissing, Unavailable, UsageError
from memctl.location import redact, visible
from memctl.machine.concurrency import within
from memctl.storekit.files import NewFile, system_errors
from memctl.storekit.named_file import Listed, NamedFile

_RETRIES = 5
_REGION = re.compile(r"[\w.-]+", re.ASCII)
_TIMEOUTS = {"connect_timeout": "10s", "timeout": "30d", "read_timeout": "5m"}
"""A part of an object, or what a server sends at once, may take ``read_timeout``."""


def driver(label: str) -> Any:
    """Return the module ``obstore``; ``label`` names the object in the error.

    Raises:
        UsageError: obstore is not installed.
    """
    try:
        return import_module("obstore")
    except ModuleNotFoundError as error:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            f"{label} needs the driver {error.name!r}, which is not installed",
            install_command("objects"),
        ) from error


def open_bucket(address: Address, label: str) -> Any:
    """Return obstore's client of the bucket of an object.  The client makes no connection yet.

    Credentials are those of the address, else those of the environment, of the profile of AWS, or
    of the machine.  ``label`` names the object in errors.

    Raises:
        UsageError: obstore is not installed, or the credentials are malformed.
        Unavailable: there are no credentials.
    """
    driver(label)
    from obstore.store import AzureStore, GCSStore, S3Store

    retry: Any = {"max_retries": _RETRIES, "retry_timeout": timedelta(minutes=3)}
    with object_errors(address, label, "read"):
        if address.scheme == S3:
            settings = _s3(address, label)
            client = _client(settings.get("endpoint"))
            return S3Store(address.bucket, client_options=client, retry_config=retry, **settings)
        client = _client(address.endpoint)
        settings = _gs(address, label) if address.scheme == GS else _az(address)
        store: Any = AzureStore if address.scheme == AZ else GCSStore
        return store(address.bucket, client_options=client, retry_config=retry, **settings)


def _client(endpoint: str | None) -> Any:
    return {**_TIMEOUTS, "allow_http": bool(endpoint) and str(endpoint).startswith("http:")}


def _s3(address: Address, label: str) -> dict[str, Any]:
    """Return the settings of a client of S3.

    Raises:
        PasswordMissing: there is a key ID, and nothing gives its secret.
        UsageError: the endpoint or the region is not valid.
    """
    settings: dict[str, Any] = {"checksum_algorithm": "SHA256"}
    given = os.environ
    profile = {} if address.secret or given.get("AWS_ACCESS_KEY_ID") else _profile("credentials")
    known = given.get("AWS_ACCESS_KEY_ID") or profile.get("aws_access_key_id")
    secret = profile.get("aws_secret_access_key") or given.get("AWS_SECRET_ACCESS_KEY")
    login = address.login or known
    if address.secret:
        settings |= {"access_key_id": address.login, "secret_access_key": address.secret}
    elif login and (login != known or not secret):
        raise PasswordMissing(
            f"there is no secret for the key ID {visible(login)!r} of {label}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or an alias with password_command",
        )
    elif "aws_access_key_id" in profile:
        settings |= {
            "access_key_id": profile["aws_access_key_id"],
            "secret_access_key": secret,
        }
        if token := profile.get("aws_session_token"):
            settings["token"] = token
    region = address.region or given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION")
    settings["region"] = region or _profile("config").get("region") or "us-east-1"
    if not _REGION.fullmatch(settings["region"]):
        raise UsageError(
            f"the region {visible(repr(settings['region']))} is not valid",
            "write AWS_REGION=eu-central-1, or ?region=eu-central-1",
        )
    endpoint = address.endpoint or _endpoint()
    if address.path_style is not None:
        settings["virtual_hosted_style_request"] = not address.path_style
    if endpoint and address.path_style is False:
        parts = urlsplit(endpoint)
        endpoint = parts._replace(netloc=f"{address.bucket}.{parts.netloc}").geturl()
    if endpoint:
        settings["endpoint"] = endpoint
    return settings


def _endpoint() -> str:
    """Return the endpoint of S3 in the environment or the profile; empty without one.

    Raises:
        UsageError: the endpoint is not the URL of a server.
    """
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    found = next(((name, os.environ[name]) for name in names if os.environ.get(name)), None)
    name, text = found or ("endpoint_url", _profile("config").get("endpoint_url", ""))
    if text and not is_endpoint(text):
        raise UsageError(
            f"{name}={redact(text)} is not the URL of a server", f"write {name}=https://HOST:PORT"
        )
    return text


def _profile(file: str) -> dict[str, str]:
    """Return the settings of the profile of AWS in ``~/.aws/credentials`` or ``~/.aws/config``.

    obstore does not read these files.  The profile is ``AWS_PROFILE``, or ``default``.

    Raises:
        UsageError: the file cannot be read or parsed.
    """
    import configparser  # only needed for a profile

    variable = "AWS_SHARED_CREDENTIALS_FILE" if file == "credentials" else "AWS_CONFIG_FILE"
    path = Path(os.environ.get(variable) or Path("~/.aws") / file).expanduser()
    name = os.environ.get("AWS_PROFILE") or "default"
    section = name if file == "credentials" or name == "default" else f"profile {name}"
    read = configparser.RawConfigParser()
    try:
        read.read_string(path.read_text("utf-8"), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, configparser.Error) as error:
        raise UsageError(
            f"the settings of AWS in {visible(str(path))} cannot be read",
            f"check the file: {visible(str(error))}",
        ) from error
    return dict(read[section]) if read.has_section(section) else {}


def _gs(address: Address, label: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if address.secret:
        try:
            json.loads(address.secret)
        except ValueError:
            raise UsageError(
                f"the password for {label} is not the JSON of a service account's key",
                'print the key file: password_command = "cat key.json"',
            ) from None
        settings["service_account_key"] = address.secret
    if address.endpoint:
        settings["base_url"] = address.endpoint
    return settings


def _az(address: Address) -> dict[str, Any]:
    found = {
        "account_name": address.login,
        "account_key": address.secret,
        "endpoint": address.endpoint,
    }
    return {name: value for name, value in found.items() if value}


T = TypeVar("T")

MEBIBYTE = 1024 * 1024
IN_RAM = 64 * MEBIBYTE
"""The size of the largest object that is staged in RAM."""
PART = 16 * MEBIBYTE
"""The size of the parts of an upload.  S3 takes 10,000 parts, so an object has at most 156 GiB."""
LARGEST = 10_000 * PART
_CONCURRENT_PARTS = 3
_ONE_REQUEST = 8 * MEBIBYTE
"""The size of the largest object that is written in one request."""
_PIECE = MEBIBYTE


class ObjectFile(NamedFile):
    """An object in a bucket.

    ::

        file = ObjectFile(parse_address("s3://backups/chats.ndjson"))
    """

    def __init__(self, address: Address, bucket: Any = None) -> None:
        """``bucket`` is the client of the bucket, if it is known from a sibling."""
        self.address = address
        self.name = address.name
        self.label = address.label
        self._client = bucket
        self._stopped = False

    @property
    def bucket(self) -> Any:
        """The client of the bucket.

        Raises:
            MemctlError: as ``open_bucket``.
        """
        if self._client is None:
            self._client = open_bucket(self.address, self.label)
        return self._client

    @property
    def identity(self) -> str:
        return self.address.identity

    def stamp(self) -> Hashable | None:
        found = self.head()
        return None if found is None else stamp_of(found)

    def head(self) -> dict[str, Any] | None:
        """Return what the server says about the object; None if there is no object."""
        obstore = driver(self.label)

        def head() -> dict[str, Any] | None:
            try:
                return dict(obstore.head(self.bucket, self.address.key))
            except FileNotFoundError:
                return None
            except obstore.exceptions.BaseError as error:
                if status_of(error) not in ("400", "403") or code_of(error):
                    raise
                # The answer to HEAD has no body, which would say why.
                obstore.get(self.bucket, self.address.key, options={"range": (0, 1)}).bytes()
                raise

        return self._ask("read", head)

    def _ask(self, verb: str, call: Callable[[], T]) -> T:
        """Return the answer of the server to a call, which may take ``objects.limit`` seconds.

        ``verb`` is as for ``object_errors``.

        Raises:
            Lost: the answer took longer.
            MemctlError: as ``object_errors``.
        """
        seconds = objects.limit
        with object_errors(self.address, self.label, verb):
            try:
                return within(seconds, call)
            except TimeoutError as error:
                raise Lost(
                    f"{self.label}: the server did not answer within {seconds:g} s",
                    "raise --timeout, or check the server",
                ) from error

    def open(self) -> int:
        self._stopped = False
        obstore = driver(self.label)
        with object_errors(self.address, self.label, "read"):
            found = obstore.get(self.bucket, self.address.key)
            size = found.meta["size"]
            handle = self._staging_file(size)
            try:
                got = 0
                for piece in found.stream(_PIECE):
                    if self._stopped:
                        raise Unavailable(f"reading {self.label} was stopped")
                    got += len(piece)
                    with system_errors(self.on_disk, "write"):
                        _write(handle, piece)
                if got != size or self.stamp() != stamp_of(dict(found.meta)):
                    raise Unavailable(
                        f"{self.label} changed while it was read", "run the same command again"
                    )
                os.lseek(handle, 0, os.SEEK_SET)
            except BaseException:
                os.close(handle)
                raise
        return handle

    def interrupt(self) -> None:
        self._stopped = True

    def _staging_file(self, size: int) -> int:
        """Return the descriptor of a new file without a name, for ``size`` bytes."""
        if size <= IN_RAM and hasattr(os, "memfd_create"):
            self.staged = f"{self.label}: {size:,} bytes, staged in RAM"
            return os.memfd_create("memctl", os.MFD_CLOEXEC)
        folder = self.on_disk
        self.staged = f"{self.label}: {size:,} bytes, staged in a temporary file in {folder}"
        with system_errors(folder, "write"), tempfile.TemporaryFile(dir=folder) as file:
            return os.dup(file.fileno())

    def create(self, mode: int | None = None, *, replace: bool = True) -> NewFile:  # noqa: ARG002
        return NewObject(self, replaces=replace)

    def remove(self) -> None:
        obstore = driver(self.label)

        try:
            with suppress(NotFound):
                self._ask("remove", partial(obstore.delete, self.bucket, self.address.key))
        except Lost:
            if self.head() is not None:
                raise

    def sibling(self, name: str) -> ObjectFile:
        return ObjectFile(self.address.sibling(name), self._client)

    def siblings(self) -> list[Listed]:
        obstore = driver(self.label)

        call = partial(obstore.list_with_delimiter, self.bucket, self.address.folder or None)
        found = self._ask("list", call)["objects"]
        return [
            Listed(one["path"].rpartition("/")[2], one["size"], one["last_modified"].timestamp())
            for one in found
        ]

    def sync(self) -> None:
        """Do nothing: an object is durable when its upload has ended."""


class NewObject(NewFile):
    """The new content of an object, uploaded in parts while it is written.

    A small content is uploaded by ``commit``, in one request.  The object appears when the upload
    has ended.  A discarded upload leaves no parts, unless memctl is killed by SIGKILL.
    """

    def __init__(self, file: ObjectFile, *, replaces: bool) -> None:
        self._file = file
        self._replaces = replaces
        self._before = file.head()
        self._piece = bytearray()
        """Written data that the upload does not have yet."""
        self._size = 0
        self._digests = sha256(), md5(usedforsecurity=False)
        self._upload: _Upload | None = None
        self._done = False

    def write(self, data: bytes | memoryview, /) -> int:
        self._piece += data
        for digest in self._digests:
            digest.update(data)
        self._size += len(data)
        if self._size > LARGEST:
            raise Unavailable(
                f"{self._file.label} would be larger than {LARGEST >> 30} GiB",
                "compress it, as with .zst, or divide it by --shard",
            )
        if len(self._piece) >= (_PIECE if self._upload else _ONE_REQUEST):
            if self._upload is None:
                self._upload = _Upload(self._file)
            self._upload.give(bytes(self._piece))
            self._piece.clear()
        return len(data)

    def commit(self) -> None:
        """Complete the object.

        The answer to the last request may be lost; the client repeats the request, which then fails
        because the first one was carried out.  So after an error, the object itself decides.

        Raises:
            UsageError: the object exists, and ``replaces`` was not set.
            Lost: the server cannot be reached; the object may be complete.
            Unavailable: another program has changed the object meanwhile, or the server refuses.
        """
        file = self._file
        present = file.head()
        if present is not None and not self._replaces:
            raise UsageError(f"{file.label} exists", "name another object")
        if _stamp_or_none(present) != _stamp_or_none(self._before):
            raise changed(file.label)
        if self._upload is not None:
            self._upload.give(bytes(self._piece))
        try:
            if self._upload is None:
                self._put_at_once()
            else:
                self._upload.complete()
        except BaseException as error:  # a signal, too
            self.discard()
            if self._is_stored(error):
                return
            raise
        self._done = True
        self._piece.clear()
        written = file.head()
        if written is None or written["size"] != self._size:
            raise self._differs()

    def confirm(self) -> None:
        if not self._is_in(self._file.head()):
            raise self._differs()

    def _differs(self) -> Unavailable:
        text = f"{self._file.label} is not what memctl wrote"
        return Unavailable(text, "run the same command again")

    def _is_in(self, present: dict[str, Any] | None) -> bool:
        """Return whether the object, as the server describes it, has the whole new content.

        The ETag of an object that was written in one request is mostly its MD5.  Any other object
        is read back.
        """
        if present is None or present["size"] != self._size:
            return False
        sha, weak = self._digests
        if (present["e_tag"] or "").strip('"') == weak.hexdigest():
            return True
        with os.fdopen(self._file.open(), "rb") as content:
            return file_digest(content, "sha256").digest() == sha.digest()

    def _is_stored(self, error: BaseException) -> bool:
        """Return whether the object has the whole new content although its last request failed.

        Raises:
            Lost: the server cannot be reached, so that is not known.
            Unavailable: another program has changed the object meanwhile.
        """
        file = self._file
        try:
            present = file.head()
            if self._is_in(present):
                return True
        except MemctlError as unknown:
            raise Lost(
                f"{unknown.message}; not known whether {file.label} is complete",
                "look at the object when the server can be reached",
            ) from error
        if _stamp_or_none(present) != _stamp_or_none(self._before):
            raise changed(file.label) from error
        return False

    def _put_at_once(self) -> None:
        """Write the object in one request, on condition that nobody has replaced the object.

        Servers that do not know the condition ignore or refuse it; the condition was checked just
        before.
        """
        file, before = self._file, self._before
        obstore = driver(file.label)
        condition: Any = "create"
        if before is not None:
            known = {name: before[name] for name in ("e_tag", "version") if before[name]}
            needed = "version" if file.address.scheme == GS else "e_tag"
            condition = known if needed in known else "overwrite"
        with object_errors(file.address, file.label, "write"):
            bucket, key, content = file.bucket, file.address.key, bytes(self._piece)
            try:
                obstore.put(bucket, key, content, mode=condition)
            except (obstore.exceptions.BaseError, NotImplementedError) as error:
                if status_of(error) != "501":
                    raise
                obstore.put(bucket, key, content, use_multipart=False)

    def discard(self) -> None:
        if self._done:
            return
        self._done = True
        self._piece.clear()
        if self._upload is not None:
            self._upload.abort()


class _Upload:
    """An upload in parts, in a thread, of what ``give`` passes on.

    One piece waits at most, so the upload is never behind by more than its parts.
    """

    _WAIT = 60
    """Seconds that the server may take to drop the parts of an aborted upload."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._changed = Condition()
        self._waiting: bytes | None = None
        self._complete = False
        self._aborted = False
        self._ended = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="upload", daemon=True)
        self._thread.start()

    def give(self, piece: bytes) -> None:
        """Pass on the next piece, when the upload has taken the one before.

        Raises:
            MemctlError: the upload has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None or self._ended)
            self._raise_error()
            self._waiting = piece
            self._changed.notify_all()

    def complete(self) -> None:
        """End the upload; return when the object is there.

        Raises:
            MemctlError: the upload has failed; its parts are dropped.
        """
        with self._changed:
            self._complete = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended)
            self._raise_error()

    def abort(self) -> None:
        """Drop the upload and its parts; return when the server has dropped them."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
        self._thread.join(self._WAIT)

    def _raise_error(self) -> None:
        if isinstance(self._error, MemctlError):
            raise self._error
        if self._error is not None:
            raise Unavailable(f"cannot write {self._file.label}: {self._error}") from self._error

    def _pieces(self) -> Iterator[bytes]:
        """Yield the pieces as they come; an error in this iterator makes obstore drop the parts."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._aborted or self._complete or self._waiting is not None
                )
                if self._aborted:
                    raise _AbortedError
                piece, self._waiting = self._waiting, None
                self._changed.notify_all()
            if piece is None:
                return
            if piece:
                yield piece

    def _run(self) -> None:
        file = self._file
        error: BaseException | None = None
        try:
            with object_errors(file.address, file.label, "write"):
                driver(file.label).put(
                    file.bucket,
                    file.address.key,
                    self._pieces(),
                    use_multipart=True,
                    chunk_size=PART,
                    max_concurrency=_CONCURRENT_PARTS,
                )
        except _AbortedError:
            pass
        except BaseException as found:  # noqa: BLE001 - raised by the caller
            error = found
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()


class _AbortedError(Exception):
    """The upload was aborted."""


def stamp_of(found: dict[str, Any]) -> Hashable:
    """Return the stamp of an object from what the server says about the object."""
    e_tag = (found["e_tag"] or "").strip('"')
    return e_tag, found["version"], found["size"], found["last_modified"].replace(microsecond=0)


def _stamp_or_none(found: dict[str, Any] | None) -> Hashable | None:
    return None if found is None else stamp_of(found)


def _write(handle: int, data: bytes) -> None:
    with memoryview(data) as rest:
        at = 0
        while at < len(rest):
            at += os.write(handle, rest[at:])
