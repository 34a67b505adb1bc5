"""The addresses of objects: URLs of buckets and keys, with the options of the server."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from memctl.errors import UsageError
from memctl.location import redact, visible

S3, GS, AZ = "s3", "gs", "az"
SCHEMES = (S3, GS, AZ)
"""The schemes of URLs of objects; Azure also has URLs of the scheme ``https``."""
OPTIONS = {S3: ("endpoint", "region", "path_style"), GS: ("endpoint",), AZ: ("endpoint",)}
"""The options of URLs, by scheme."""
FORMS = {
    S3: "s3://BUCKET/KEY",
    GS: "gs://BUCKET/KEY",
    AZ: "az://ACCOUNT@CONTAINER/KEY",
}
_AZURE_HOST = ".blob.core.windows.net"
_ENDPOINT = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?(/[\w./~-]*)?", re.ASCII)
_YES_OR_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


class Address(Struct, frozen=True):
    """The address of an object.

    ::

        parse_address("s3://backups/agents/chats.ndjson.zst?endpoint=http://minio:9000")
    """

    scheme: str
    bucket: str
    """The bucket; on Azure, the container."""
    key: str
    login: str = ""
    """The access key ID; on Azure, the account."""
    secret: str = ""
    """The secret access key, the key of the account, or the JSON of a service account."""
    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None

    @property
    def name(self) -> str:
        """The part of the key after the last slash."""
        return self.key.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The part of the key up to the last slash, without the slash; empty without a slash."""
        return self.key.rpartition("/")[0]

    def sibling(self, name: str) -> Address:
        """Return the address of the object ``name`` in the same folder."""
        return replace(self, key=f"{self.folder}/{name}".lstrip("/"))

    @property
    def identity(self) -> str:
        """A text that is equal for all addresses of one object, whatever the login."""
        account = self.login if self.scheme == AZ else ""
        return f"{self.scheme}://{account}@{self.endpoint.rstrip('/')}/{self.bucket}/{self.key}"

    @property
    def url(self) -> str:
        """The URL of the object, without the secret."""
        return self._url(quote(self.login, safe=""))

    @property
    def label(self) -> str:
        """The URL of the object to show: without the login, but for the account of Azure."""
        return visible(self._url(quote(self.login, safe="") if self.scheme == AZ else ""))

    def _url(self, login: str) -> str:
        at = "@" if login else ""
        style = "" if self.path_style is None else "yes" if self.path_style else "no"
        found = {"endpoint": self.endpoint, "region": self.region, "path_style": style}
        query = urlencode({name: text for name, text in found.items() if text}, safe="/:")
        mark = "?" if query else ""
        return f"{self.scheme}://{login}{at}{self.bucket}/{quote(self.key)}{mark}{query}"


def is_object(text: str) -> bool:
    """Return whether a text begins like the URL of an object."""
    scheme, colon, rest = text.partition("://")
    if not colon:
        return False
    if scheme.lower() == "https":
        host = rest.partition("/")[0].partition("?")[0]
        return host.rpartition("@")[2].lower().endswith(_AZURE_HOST)
    return scheme.lower() in SCHEMES


def is_endpoint(text: str) -> bool:
    """Return whether a text is the URL of a server, without a login."""
    return _ENDPOINT.fullmatch(text) is not None


def parse_address(text: str) -> Address:
    """Return the address in a URL.

    Keys are percent-encoded: ``%20`` is a space, ``%3F`` a question mark.

    Raises:
        UsageError: the URL is not that of an object.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise UsageError(
            f"{redact(text)} is not a valid address", f"write {FORMS[S3]}, without a port"
        ) from None
    if parts.fragment or text.endswith("#"):
        raise UsageError(f"{redact(text)} contains a '#'", "write %23 in a key")
    if parts.scheme.lower() == "https":
        return _azure(text, parts)
    scheme = parts.scheme.lower()
    login, _, bucket = parts.netloc.rpartition("@")
    login, _, secret = login.partition(":")
    if not bucket or not parts.path.strip("/"):
        raise UsageError(f"{redact(text)} names no object", f"write {FORMS[scheme]}")
    return _with_options(
        Address(scheme, bucket, _key(text, parts.path), unquote(login), unquote(secret)),
        text,
        parts.query,
    )


def _azure(text: str, parts: SplitResult) -> Address:
    """Return the address in a URL such as ``https://ACCOUNT.blob.core.windows.net/CONTAINER/KEY``.

    A query, such as that of a shared access signature, is refused: it would be a credential.
    """
    login, _, host = parts.netloc.rpartition("@")
    container, slash, key = parts.path.lstrip("/").partition("/")
    if not slash or not key:
        raise UsageError(
            f"{redact(text)} names no object",
            f"write https://ACCOUNT{_AZURE_HOST}/CONTAINER/KEY",
        )
    account = host.lower().removesuffix(_AZURE_HOST)
    secret = unquote(login.partition(":")[2])
    address = Address(AZ, unquote(container), _key(text, f"/{key}"), account, secret)
    return _with_options(address, text, parts.query)


def _key(text: str, path: str) -> str:
    key = unquote(path.removeprefix("/"))
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise UsageError(
            f"the key of {redact(text)} has an empty part, '.' or '..'",
            "name an object, not a folder",
        )
    if not key.isprintable():
        raise UsageError(
            f"the key of {redact(text)} contains control characters", "choose another name"
        )
    return key


def _with_options(address: Address, text: str, query: str) -> Address:
    known = OPTIONS[address.scheme]
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in known:
            raise UsageError(
                f"{redact(address.url)}: {address.scheme}:// takes no option {visible(name)!r}",
                f"known: {', '.join(known)}; credentials come from the environment or an alias",
            )
        if not value:
            raise UsageError(f"{redact(text)}: the option {name}= is empty", "leave it out")
    endpoint = options.get("endpoint", "")
    if "@" in endpoint:
        raise UsageError(
            f"endpoint={redact(endpoint)} contains a login", "write the key ID before the bucket"
        )
    if endpoint and not is_endpoint(endpoint):
        raise UsageError(
            f"endpoint={redact(endpoint)} is not a URL", "write endpoint=https://HOST:PORT"
        )
    style = options.get("path_style")
    if style is not None and style.lower() not in _YES_OR_NO:
        raise UsageError(f"path_style={visible(style)} is unknown", "write path_style=yes or no")
    return replace(
        address,
        endpoint=endpoint,
        region=options.get("region", ""),
        path_style=None if style is None else _YES_OR_NO[style.lower()],
    )
