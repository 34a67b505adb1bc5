"""The configuration file: stores, fleets, models, defaults, and the limits of undo."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from memctl import plugins
from memctl.config import secrets
from memctl.config.checks import nearest, refuse_unknown
from memctl.config.encryption import read_encryption
from memctl.config.trust import refuse_changeable
from memctl.encryption import Encryption
from memctl.engines.objects.address import OPTIONS, S3, is_object
from memctl.errors import NotFound, Unavailable, UsageError
from memctl.journal.retention import Retention
from memctl.location import Location
from memctl.machine import system
from memctl.registry import EXTENSIONS, PREFIXES, SUFFIXES, newest, parse
from memctl.stores.archive.rotation import LATEST, latest_of

if TYPE_CHECKING:
    from memctl.inference.settings import Settings

_TABLES = {
    "stores": "[stores.NAME]",
    "summarizers": "[summarizers.NAME]",
    "embedders": "[embedders.NAME]",
    "fleets": "[fleets.NAME]",
    "defaults": "[defaults.COMMAND]",
    "encryption": "[encryption]",
    "offload": "[offload]",
}
_LISTS = {"retention": "[[retention]]", "hold": "[[hold]]"}
_TABLE_KEYS = (
    *("layout", "table", "columns", "dialect", "content_encoding", "live", "summary"),
    *("owner", "app", "tz"),
)
"""The keys that describe a mapped table or, ``tz``, its times; also options of the store's URL."""
_OBJECT_KEYS = OPTIONS[S3]
"""The keys for an archive in object storage; also options of the archive's URL."""
_STORE_KEYS = ("url", "factory", *_TABLE_KEYS, *_OBJECT_KEYS, *secrets.keys("password"))
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_BARE_NAME = re.compile(r"[\w.-]+")
_FLEET = re.compile(r"@[\w-]+")


@dataclass(frozen=True, slots=True)
class Alias:
    """A store with a name, from ``[stores.NAME]`` of the configuration file.

    ``password`` is the source of the password in ``url``; None if the file sets none.  ``factory``
    is the function of a LangChain vector store, such as ``app.rag:vector_store``.
    """

    name: str
    url: str
    password: secrets.Source | None = None
    secret_variables: frozenset[str] = frozenset()
    """Variables that are removed from the environment of a password command."""
    factory: str | None = None

    def location(self) -> Location:
        """Return the location of the store as configured, without the password.

        Raises:
            UsageError: the URL is not valid.
        """
        if self.factory is None:
            return parse(self.url)
        return Location("langchain", self.url, self.url, options={"factory": self.factory})

    def locate(
        self, environment: Mapping[str, str], timeout: float = secrets.COMMAND_TIMEOUT
    ) -> Location:
        """Return the location of the store, with the password in its URL.

        ``environment`` has variables that may contain the password.  A command that prints the
        password may take ``timeout`` seconds.

        Raises:
            UsageError: the password cannot be fetched, or the URL is not valid.
        """
        location = self.location()
        if self.password is None:
            return location
        what = f"the password of {self.name!r}"
        password = secrets.fetch(what, self.password, environment, timeout, self.secret_variables)
        return location.with_password(password)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Stores that a run in parts takes as one, from ``[fleets.NAME]`` of the configuration file.

    ``stores`` are their names, in the order in which their parts are numbered.
    """

    name: str
    stores: tuple[str, ...]

    def __str__(self) -> str:
        return f"@{self.name}"


@dataclass(frozen=True, slots=True)
class ConfiguredModel:
    """A configured summarizer or embedder: the settings, and the source of the API key."""

    settings: Settings
    api_key: secrets.Source | None = None

    def key(
        self, environment: Mapping[str, str], timeout: float = secrets.COMMAND_TIMEOUT
    ) -> str | None:
        """Return the API key of the model; None if no source of a key is configured.

        ``environment`` has variables that may contain the key.  A command that prints the key may
        take ``timeout`` seconds.

        Raises:
            UsageError: the key cannot be fetched.
        """
        if self.api_key is None:
            return None
        what = f"the key of {self.settings.name!r}"
        return secrets.fetch(
            what, self.api_key, environment, timeout, self.settings.secret_variables
        )


@dataclass(frozen=True, slots=True)
class Config:
    """The content of the configuration file; empty if there is no file."""

    path: Path = Path()
    stores: dict[str, Alias] = field(default_factory=dict)
    fleets: dict[str, Fleet] = field(default_factory=dict)
    undo: Retention = field(default_factory=Retention)
    """The limits of the runs kept for undo."""
    undo_keys: frozenset[str] = frozenset()
    """The keys of ``[undo]`` that the file sets."""
    summarizers: dict[str, Any] = field(default_factory=dict)
    """The tables of ``[summarizers]``, checked on use."""
    embedders: dict[str, Any] = field(default_factory=dict)
    """The tables of ``[embedders]``, checked on use."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """The tables of ``[defaults]``, checked by the command line."""
    found: bool = False
    """True if the file exists."""
    secret_variables: frozenset[str] = frozenset()
    """Variables with passwords and keys, which configured programs do not get."""
    encryption: dict[str, Any] = field(default_factory=dict)
    """The table ``[encryption]``, not yet checked."""
    offload: dict[str, Any] = field(default_factory=dict)
    """The table ``[offload]``, not yet checked."""
    retention: list[dict[str, Any]] = field(default_factory=list)
    """The tables ``[[retention]]``, not yet checked."""
    holds: list[dict[str, Any]] = field(default_factory=list)
    """The tables ``[[hold]]``, not yet checked."""

    def locate(self, text: str, environment: Mapping[str, str]) -> Location:
        """Return the location of a store: ``text`` is a name in the configuration, a URL or a path.

        Raises:
            UsageError: ``text`` names no store, or the configured password cannot be fetched.
        """
        return newest(self.with_keys(self._locate(text, environment), environment))

    def with_keys(self, location: Location, environment: Mapping[str, str]) -> Location:
        """Return a location; that of an archive, or of stdin, with the keys of ``[encryption]``.

        Raises:
            UsageError: ``[encryption]`` is not valid.
        """
        if not self.encryption or location.kind not in ("archive", "stdio"):
            return location
        return replace(location, encryption=self.keys(environment))

    def keys(
        self, environment: Mapping[str, str], timeout: float = secrets.COMMAND_TIMEOUT
    ) -> Encryption:
        """Return the keys of ``[encryption]``; the arguments are those of ``read_encryption``.

        Raises:
            UsageError: ``[encryption]`` is not valid.
        """
        return read_encryption(
            self.path, self.encryption, environment, timeout, self.secret_variables
        )

    def alias(self, text: str) -> Alias | None:
        """Return the store named ``text``, or the newest file of its rotation for ``NAME@latest``.

        The result is None if there is no such store, and for ``@latest`` if it is no archive.

        Raises:
            UsageError: the URL of the store is not valid.
        """
        if text in self.stores or not text.endswith(LATEST):
            return self.stores.get(text)
        named = self.stores.get(text.removesuffix(LATEST))
        if named is None or named.location().kind != "archive":
            return None
        return replace(named, url=latest_of(named.url))

    def _locate(self, text: str, environment: Mapping[str, str]) -> Location:
        alias = self.alias(text)
        if alias is not None:
            return alias.locate(environment)
        if (fleet := self.fleet(text)) is not None:
            raise UsageError(
                f"{text} is a fleet, not a store", f"name one of its stores: {fleet.stores[0]}"
            )
        if _BARE_NAME.fullmatch(text) and text != "-" and not _is_file_name(text):
            near = difflib.get_close_matches(text, self.stores, n=1)
            known = f"did you mean {near[0]!r}? " if near else ""
            if Path(text).suffix and not near:
                raise UsageError(
                    f"unrecognised file extension: {text!r} is neither a file nor an alias",
                    EXTENSIONS,
                )
            if not self.found:
                raise UsageError(
                    f"there is no store named {text!r}: {self.path} does not exist",
                    "name the configuration with --config or MEMCTL_CONFIG, or write "
                    f"./{text} for a file or folder",
                )
            raise UsageError(
                f"there is no store named {text!r} in the configuration",
                f"{known}write ./{text} for a file or folder",
            )
        return parse(text)

    def fleet(self, text: str) -> Fleet | None:
        """Return the fleet that ``text``, such as ``@prod``, names; None if it is another name.

        Raises:
            UsageError: there is no such fleet.
        """
        name = text[1:]
        if not _FLEET.fullmatch(text) or (name not in self.fleets and os.path.exists(text)):
            return None
        if name not in self.fleets:
            near = nearest(name, self.fleets)
            raise UsageError(
                f"there is no fleet named {name!r} in the configuration",
                f"did you mean '@{near}'?" if near else "[fleets.NAME] configures one",
            )
        return self.fleets[name]

    def summarizer(self, name: str) -> ConfiguredModel:
        """Return the configured summarizer ``name``; ``extractive`` needs no configuration.

        Raises:
            UsageError: the name is not configured, or its table is not valid.
        """
        from memctl.summarizers.registry import EXTRACTIVE, KEYS  # only needed for compress

        if name in self.summarizers:
            return self._model("summarizers", name, self.summarizers[name], KEYS)
        if name == EXTRACTIVE.name:
            return ConfiguredModel(EXTRACTIVE)
        near = difflib.get_close_matches(name, [*self.summarizers, EXTRACTIVE.name], n=1)
        raise UsageError(
            f"there is no summarizer named {name!r} in the configuration",
            f"did you mean {near[0]!r}?" if near else "[summarizers.NAME] configures one",
        )

    def embedder(self, name: str) -> ConfiguredModel:
        """Return the configured embedder ``name``.

        Raises:
            UsageError: the name is not configured, or its table is not valid.
        """
        from memctl.embedders.registry import KEYS  # only needed for copies of facts

        if name in self.embedders:
            return self._model("embedders", name, self.embedders[name], KEYS)
        near = nearest(name, self.embedders)
        raise UsageError(
            f"there is no embedder named {name!r} in the configuration",
            f"did you mean {near!r}?" if near else "[embedders.NAME] configures one",
        )

    def _model(
        self, family: str, name: str, entry: Any, kinds: Mapping[str, Collection[str]]
    ) -> ConfiguredModel:
        return _read_model(self.path, family, name, entry, kinds, self.secret_variables)


def _is_file_name(text: str) -> bool:
    if text.lower().endswith(SUFFIXES) or os.path.exists(text):
        return True
    return Path(text).suffix[1:].lower() in plugins.names(plugins.STORES)


def load(explicit: Path | None, environment: Mapping[str, str]) -> Config:
    """Read the configuration file; return an empty configuration if the default file is missing.

    The file is ``explicit``.  If that is None, it is the file named by ``MEMCTL_CONFIG``; without
    this variable, it is the default file.

    Raises:
        NotFound: the file is named by ``explicit`` or ``MEMCTL_CONFIG`` and does not exist.
        UsageError: the file is unreadable or not valid TOML, has an unknown setting, or starts
            programs although other users could change it.
    """
    path = place(explicit, environment)
    named = explicit is not None or bool(environment.get("MEMCTL_CONFIG"))
    try:
        raw = system.read_file(path)
    except FileNotFoundError:
        if not named:
            return Config(path)
        raise NotFound(
            f"the configuration {path} does not exist",
            "check --config and MEMCTL_CONFIG, or create one with: memctl config init",
        ) from None
    except OSError as error:
        raise UsageError(
            f"the configuration {path} cannot be read: {error.strerror}",
            "name a readable file with --config or MEMCTL_CONFIG",
        ) from error
    try:
        content = tomllib.loads(raw.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", 'quote strings: "..."') from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deep", "no setting is a list of lists") from error
    found = _read(path, content)
    refuse_changeable(path, content)
    return found


def place(explicit: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the path of the configuration file, which may not exist.

    It is ``explicit`` if given, else the path in ``MEMCTL_CONFIG``, else the default path.
    """
    if explicit is not None:
        return explicit
    named = environment.get("MEMCTL_CONFIG")
    return Path(named) if named else default_path()


def default_path() -> Path:
    """Return the default path of the configuration file on this platform."""
    from platformdirs import user_config_path  # not needed if a file is named

    return user_config_path("memctl") / "config.toml"


def environment() -> Mapping[str, str]:
    """Return the environment variables of this process."""
    return os.environ


def _read(path: Path, content: dict[str, Any]) -> Config:
    refuse_unknown(path, "", content, (*_TABLES, *_LISTS, "undo"))
    for name, heading in _TABLES.items():
        if not isinstance(content.get(name, {}), dict):
            raise UsageError(f"{path}: {name} is not a table", f"write {heading}")
    for name, heading in _LISTS.items():
        found = content.get(name, [])
        if not isinstance(found, list) or any(not isinstance(one, dict) for one in found):
            raise UsageError(f"{path}: {name} is not a list of tables", f"write {heading}")
    stores = content.get("stores", {})
    variables = _secret_variables(content)
    aliases = {name: _read_alias(path, name, entry, variables) for name, entry in stores.items()}
    undo = _keep(path, content.get("undo", {}))
    fleets = content.get("fleets", {})
    return Config(
        path,
        aliases,
        {name: _read_fleet(path, name, entry, aliases) for name, entry in fleets.items()},
        undo,
        frozenset(content.get("undo", {})),
        content.get("summarizers", {}),
        content.get("embedders", {}),
        content.get("defaults", {}),
        found=True,
        secret_variables=variables,
        encryption=content.get("encryption", {}),
        offload=content.get("offload", {}),
        retention=content.get("retention", []),
        holds=content.get("hold", []),
    )


def _secret_variables(content: dict[str, Any]) -> frozenset[str]:
    """Return the environment variables that hold passwords, API keys or identities."""
    families = ("stores", "summarizers", "embedders")
    tables = [table for name in families for table in content.get(name, {}).values()]
    tables.append(content.get("encryption", {}))
    named = (
        table.get(key)
        for table in tables
        if isinstance(table, dict)
        for key in ("password_env", "api_key_env", "identity_env")
    )
    return frozenset(name for name in named if isinstance(name, str))


def _keep(path: Path, entry: Any) -> Retention:
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: undo is not a table", "write [undo] with days = 30")
    refuse_unknown(path, "undo.", entry, ("days", "bytes"))
    for key, value in entry.items():
        if type(value) is not int or value < 0:
            raise UsageError(f"{path}: undo.{key} is not a whole number", f"write {key} = 30")
    return Retention(**entry)


def _read_alias(path: Path, name: str, entry: Any, secret_variables: frozenset[str]) -> Alias:
    """Return the store that the table ``[stores.NAME]`` of a configuration file describes.

    Raises:
        UsageError: the table ``entry`` does not describe a store.
    """
    place = f"stores.{name}"
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: {place} is not a table", "write [stores.NAME] with url = ...")
    refuse_unknown(path, place + ".", entry, _STORE_KEYS)
    factory = entry.get("factory")
    if isinstance(entry.get("path_style"), bool):
        entry = {**entry, "path_style": "yes" if entry["path_style"] else "no"}
    columns = entry.get("columns")
    if columns is not None:
        entry = {**entry, "columns": _columns(path, place, columns)}
    if any(not isinstance(value, str) for value in entry.values()) or not (
        factory or "url" in entry
    ):
        raise UsageError(f'{path}: {place} needs url = "..."; every value must be a string')
    if factory is not None:
        if len(entry) > 1:
            raise UsageError(f"{path}: {place} has a factory and more", "keep the factory alone")
        if not _FACTORY.fullmatch(factory):
            raise UsageError(
                f"{path}: {place}.factory is not the name of a function",
                'write factory = "package.module:function"',
            )
        return Alias(name, f"langchain:{factory}", factory=factory)
    password = secrets.source(path, place, entry, "password")
    keys = _OBJECT_KEYS if is_object(entry["url"]) else _TABLE_KEYS
    for key in entry:
        if key in {*_OBJECT_KEYS, *_TABLE_KEYS} - {*keys}:
            raise UsageError(
                f"{path}: {place}.{key} does not fit its url",
                f"{', '.join(_OBJECT_KEYS)} are for archives in object storage"
                if key in _OBJECT_KEYS
                else "it is not for archives in object storage",
            )
    options = {key: entry[key] for key in keys if key in entry}
    return Alias(name, _with_options(entry["url"], options), password, secret_variables)


def _read_fleet(path: Path, name: str, entry: Any, stores: Collection[str]) -> Fleet:
    """Return the fleet that the table ``[fleets.NAME]`` of a configuration file describes.

    ``stores`` are the names of the configured stores.

    Raises:
        UsageError: the table ``entry`` does not list configured stores, each once.
    """
    place = f"fleets.{name}"
    if not _FLEET.fullmatch(f"@{name}"):
        raise UsageError(f"{path}: {place!r} is not a name", "use letters, digits, _ and -")
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: {place} is not a table", f"write [{place}] with stores = [...]")
    refuse_unknown(path, f"{place}.", entry, ("stores",))
    names = entry.get("stores")
    if (
        not isinstance(names, list)
        or not names
        or any(not isinstance(one, str) for one in names)
        or len({*names}) < len(names)
    ):
        raise UsageError(
            f"{path}: {place} needs a list of stores, each once",
            'write stores = ["prod-00", "prod-01"]',
        )
    for one in names:
        if one not in stores:
            near = nearest(one, stores)
            hint = f"did you mean {near!r}?" if near else "[stores.NAME] configures one"
            if one.startswith("@"):
                hint = "list the stores themselves: a fleet holds no fleets"
            raise UsageError(f"{path}: {place}: there is no store named {one!r}", hint)
    return Fleet(name, tuple(names))


def _columns(path: Path, place: str, columns: Any) -> str:
    """Return the setting ``columns`` of a mapped table as the value of a URL option.

    ``place`` is the name of the store's table in the file, for errors.

    Raises:
        UsageError: ``columns`` is not a table of names, or a key is not in ``COLUMN_ROLES``.
    """
    if not isinstance(columns, dict):
        raise UsageError(
            f"{path}: {place}.columns is not a table",
            'write columns = { session = "session_id", content = "content" }',
        )
    from memctl.dialects.rows import COLUMN_ROLES  # only needed for a mapped table

    refuse_unknown(path, f"{place}.columns.", columns, COLUMN_ROLES)
    pairs = []
    for role, names in columns.items():
        named = names if isinstance(names, list) and role == "order" else [names]
        if not named or not all(isinstance(one, str) and one for one in named):
            raise UsageError(
                f"{path}: {place}.columns.{role} names no column", f'write {role} = "COLUMN"'
            )
        pairs.append(f"{role}:{';'.join(quote(one, safe=' ') for one in named)}")
    return ",".join(pairs)


def _with_options(url: str, options: Mapping[str, str]) -> str:
    """Return a URL with ``options`` added to its query; a path becomes a URL.

    Without options, return ``url`` unchanged.
    """
    if not options:
        return url
    if "://" not in url and not url.startswith(PREFIXES):
        states = options.keys() == {"tz"} and Path(url).suffix.lower() in ("", ".json")
        url = f"agentscope1:{url}" if states else f"sqlite:///{quote(url)}"
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options, quote_via=quote)}"


def _read_model(
    path: Path,
    family: str,
    name: str,
    entry: Any,
    kinds: Mapping[str, Collection[str]],
    secret_variables: frozenset[str],
) -> ConfiguredModel:
    """Return the summarizer or embedder of a table of the configuration file.

    The table is ``[family.name]``, and ``entry`` is its content.  ``kinds`` has the valid keys of
    each kind.  The values of the keys are checked when the model is used.

    Raises:
        UsageError: the kind, a key, or the source of the API key is not valid.
    """
    from memctl.inference.settings import Settings  # only needed by commands that use models

    place = f"{family}.{name}"
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: {place} is not a table", f"write [{family}.NAME]")
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        near = difflib.get_close_matches(str(kind), kinds, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"{path}: {place}.kind is {kind!r}" if kind else f"{path}: {place} has no kind",
            f"{guess}known: {', '.join(sorted(kinds))}",
        )
    refuse_unknown(path, place + ".", entry, {"kind", *kinds[kind]})
    key_names = secrets.keys("api_key")
    if any(not isinstance(entry.get(key, ""), str) for key in key_names):
        raise UsageError(f"{path}: {place}: {', '.join(key_names)} must be strings")
    options = {key: value for key, value in entry.items() if key not in ("kind", *key_names)}
    return ConfiguredModel(
        Settings(name, kind, options, secret_variables, family),
        secrets.source(path, place, entry, "api_key"),
    )


def sample() -> str:
    """Return the text of a configuration file with every setting, commented out."""
    from importlib.resources import files  # only needed by config init

    return files("memctl.config").joinpath("sample.toml").read_text("utf-8")


def write_sample(path: Path, *, force: bool) -> None:
    """Write the sample configuration file atomically; other users cannot read a new file.

    Raises:
        UsageError: the file exists, and ``force`` is not set.
        Unavailable: the file cannot be written.
    """
    import tempfile  # only needed by config init

    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file: --config FILE")
    if path.exists() and not force:
        raise UsageError(f"the configuration {path} exists", "use --force to replace it")
    # A symbolic link is kept: its target is written.
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=".memctl-", dir=target.parent)  # with mode 0600
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(sample())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written: {error.strerror}", "name another file with --config"
        ) from error
