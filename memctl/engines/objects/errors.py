"""Errors of object storage, in one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from memctl.engines.objects.address import AZ, GS, S3, Address
from memctl.errors import Lost, MemctlError, NotFound, Unavailable
from memctl.location import redact_text, visible

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_ADDRESS = re.compile(r"performing [A-Z]+ (https?://[^/\s]+)")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_WRONG_LOGIN = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"),
    *("TokenRefreshRequired", "AuthenticationFailed", "InvalidAuthenticationInfo"),
    "InvalidSecurity",
}
_NO_CREDENTIALS = (
    *("169.254.169.254", "metadata.google.internal", "token request"),
    *("MissingAccount", "MissingAccessKeyId"),
)
"""Texts in the errors of a service that gives credentials to machines, or if a setting lacks."""
_CREDENTIALS = {
    S3: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or an alias with "
    "password_command",
    GS: "set GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login",
    AZ: "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or an alias with "
    "password_command",
}


@contextmanager
def object_errors(address: Address, label: str, verb: str) -> Iterator[None]:
    """Turn an error of obstore in the ``with`` block into an error of memctl.

    ``verb`` is ``read``, ``write``, ``remove`` or ``list``.

    Raises:
        NotFound: there is no such object or bucket.
        Lost: the server cannot be reached, or the connection broke.
        Unavailable: the server refuses.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError, ValueError) as error:
        raise translated(error, address, label, verb) from error


def code_of(error: Exception) -> str:
    """Return the code in the answer of a server, such as ``AccessDenied``; empty without one."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def status_of(error: Exception) -> str:
    """Return the HTTP status of the answer of a server; empty without one."""
    found = _STATUS.search(str(error))
    return found[1] if found else ""


def changed(label: str) -> Unavailable:
    """Return the error for an object that was replaced while memctl read or wrote it."""
    return Unavailable(f"another program changed {label} meanwhile", "run the same command again")


def translated(error: Exception, address: Address, label: str, verb: str) -> MemctlError:
    """Return the error of memctl for an error of obstore; see ``object_errors``."""
    text, code, status = str(error), code_of(error), status_of(error)
    if code in _NO_BUCKET:
        what = "container" if address.scheme == AZ else "bucket"
        return NotFound(
            f"there is no {what} {visible(address.bucket)!r}", "create it, or check the name"
        )
    if any(one in text for one in _NO_CREDENTIALS):
        return Unavailable(f"no credentials for {label}", _CREDENTIALS[address.scheme])
    if isinstance(error, FileNotFoundError) or status == "404":
        return NotFound(f"{label} does not exist", "check the bucket and the key")
    if code == "RequestTimeTooSkewed":
        return Unavailable(
            f"{label}: the server refuses the time of this machine's clock",
            "set the clock, for example with NTP, and run the same command again",
        )
    if code in _WRONG_LOGIN or status == "401":
        return Unavailable(
            f"{label}: the server refuses the credentials{_in_brackets(code)}",
            "check the key ID and the secret; temporary credentials may have expired",
        )
    if status == "403":
        return Unavailable(
            f"no permission to {verb} {label}{_in_brackets(code)}",
            "permit s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket as needed"
            if address.scheme == S3
            else "check the roles of the login",
        )
    if "redirect" in text.lower() and address.scheme == S3:
        return Unavailable(
            f"{label}: the bucket is in another region", "name the region: ?region=eu-central-1"
        )
    if type(error).__name__ == "PreconditionError" or type(error).__name__ == "AlreadyExistsError":
        return changed(label)
    where = _ADDRESS.search(text)
    if "HTTP error" in text or "HttpError" in text or (status.startswith("5") and status != "501"):
        why, hint = _why(text, status)
        server = where[1] if where else label
        return Lost(f"cannot reach {server}{': ' if why else ''}{visible(why)}", hint)
    first = redact_text(text.partition("\n")[0].strip())
    return Unavailable(f"cannot {verb} {label}: {visible(first)[:300]}", "see the server's log")


def _why(text: str, status: str) -> tuple[str, str]:
    """Return why a server cannot be reached, as far as an error of obstore says so, and a hint."""
    if found := _CERTIFICATE.search(text):
        return (
            f"its certificate is not trusted ({found[1]})",
            "set SSL_CERT_FILE to a file with the certificate of its authority",
        )
    if "InvalidContentType" in text:
        return "it does not speak HTTPS", "check the endpoint: is it http:// or another port?"
    hint = "check the endpoint and the network"
    if "IncompleteMessage" in text:
        return "it ended the connection without an answer", hint
    cause = _CAUSE.search(text)
    return cause[1] if cause else f"it answers {status}" if status else "", hint


def _in_brackets(code: str) -> str:
    return f" ({code})" if code else ""
