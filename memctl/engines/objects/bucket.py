"""Clients of buckets: credentials, endpoints, timeouts."""

from __future__ import annotations

import json
import os
import re
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memctl.engines.objects.address import AZ, GS, S3, Address, is_endpoint
from memctl.engines.objects.errors import object_errors
from memctl.errors import PasswordMissing, UsageError
from memctl.location import redact, visible

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
