"""The configuration file: stores, fleets, models, defaults, and the limits of undo."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, structs

from memctl import plugins
from memctl.config import secrets
from memctl.config.trust import refuse_changeable
from memctl.errors import NotFound, Unavailable, UsageError
from memctl.journal.retention import Retention
from memctl.layouts import agents
from memctl.location import Location
from memctl.machine import system
from memctl.registry import EXTENSIONS, SUFFIXES, chosen, parse
from memctl.stores.archive.rotation import split_choice, with_choice
from memctl.text.words import did_you_mean, nearest

if TYPE_CHECKING:
    from memctl.inference.settings import Settings
    from memctl.text.toml import Table

_BARE_NAME = re.compile(r"[\w.-]+")
FLEET = re.compile(r"@[\w-]+")


class Alias(Struct, frozen=True):
    """A store with a name, from ``[stores.NAME]`` of the configuration file.

    ``password`` is the source of the password in ``url``; None if the file sets none.  ``factory``
    is the function of a LangChain vector store, such as ``app.rag:vector_store``.
    """

    name: str
    url: str
    password: secrets.SecretSource | None = None
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
            UsageError: the password cannot be fetched, or is that of a file; or the URL is not
                valid.
        """
        location = self.location()
        if self.password is None:
            return location
        if not location.url:
            raise UsageError(
                f"the store {self.name!r} is a file, which takes no password",
                f"remove the password of [stores.{self.name}]",
            )
        return location.with_password(self.password.fetch(environment, timeout))


class Fleet(Struct, frozen=True):
    """Stores that a run in parts takes as one, from ``[fleets.NAME]`` of the configuration file.

    ``stores`` are their names, in the order in which their parts are numbered.
    """

    name: str
    stores: tuple[str, ...]

    def __str__(self) -> str:
        return f"@{self.name}"


class ConfiguredModel(Struct, frozen=True):
    """A configured summarizer or embedder: the settings, and the source of the API key."""

    settings: Settings
    api_key: secrets.SecretSource | None = None

    def key(
        self, environment: Mapping[str, str], timeout: float = secrets.COMMAND_TIMEOUT
    ) -> str | None:
        """Return the API key of the model; None if no source of a key is configured.

        ``environment`` has variables that may contain the key.  A command that prints the key may
        take ``timeout`` seconds.

        Raises:
            UsageError: the key cannot be fetched.
        """
        return None if self.api_key is None else self.api_key.fetch(environment, timeout)


class Config(Struct, frozen=True):
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
        return chosen(self.with_keys(self._locate(text, environment), environment))

    def with_keys(self, location: Location, environment: Mapping[str, str]) -> Location:
        """Return a location; that of an archive, or of stdin, with the keys of ``[encryption]``.

        Raises:
            UsageError: ``[encryption]`` is not valid.
        """
        if not self.encryption or location.kind not in ("archive", "stdio"):
            return location
        from memctl.config.encryption import read_encryption  # only needed with keys

        return replace(location, encryption=read_encryption(self, environment))

    def alias(self, text: str) -> Alias | None:
        """Return the store named ``text``, or one file of its rotation for ``NAME@CHOICE``.

        The result is None if there is no such store, and for ``@CHOICE`` if it is no archive.

        Raises:
            UsageError: the URL of the store is not valid.
        """
        name, choice = split_choice(text)
        if text in self.stores or not choice:
            return self.stores.get(text)
        named = self.stores.get(name)
        if named is None or named.location().kind != "archive":
            return None
        return structs.replace(named, url=with_choice(named.url, choice))

    def _locate(self, text: str, environment: Mapping[str, str]) -> Location:
        alias = self.alias(text)
        if alias is not None:
            return alias.locate(environment)
        if (fleet := self.fleet(text)) is not None:
            raise UsageError(
                f"{text} is a fleet, not a store", f"name one of its stores: {fleet.stores[0]}"
            )
        if _BARE_NAME.fullmatch(text) and text != "-" and not _is_file_name(text):
            near = nearest(text, self.stores)
            known = f"did you mean {near!r}? " if near else ""
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

        ``@agents`` needs no configuration: it is all coding agents on this machine.

        Raises:
            UsageError: there is no such fleet.
        """
        name = text[1:]
        if not FLEET.fullmatch(text) or (name not in self.fleets and os.path.exists(text)):
            return None
        if name == agents.FLEET and name not in self.fleets:
            return _agents()
        if name not in self.fleets:
            raise _unknown("fleet", name, self.fleets, "@")
        return self.fleets[name]

    def summarizer(self, name: str) -> ConfiguredModel:
        """Return the configured summarizer ``name``; ``extractive`` needs no configuration.

        Raises:
            UsageError: the name is not configured, or its table is not valid.
        """
        from memctl.summarizers.registry import EXTRACTIVE  # only needed for compress

        if name in self.summarizers:
            from memctl.inference.tables import SUMMARIZERS

            return self._model("summarizers", name, self.summarizers[name], SUMMARIZERS)
        if name == EXTRACTIVE.name:
            return ConfiguredModel(EXTRACTIVE)
        raise _unknown("summarizer", name, [*self.summarizers, EXTRACTIVE.name])

    def embedder(self, name: str) -> ConfiguredModel:
        """Return the configured embedder ``name``.

        Raises:
            UsageError: the name is not configured, or its table is not valid.
        """
        if name in self.embedders:
            from memctl.inference.tables import EMBEDDERS  # only needed for copies of facts

            return self._model("embedders", name, self.embedders[name], EMBEDDERS)
        raise _unknown("embedder", name, self.embedders)

    def _model(
        self, family: str, name: str, entry: Any, kinds: tuple[type[Table], ...]
    ) -> ConfiguredModel:
        """Return the summarizer or embedder of the table ``[family.name]``, which is ``entry``."""
        from memctl.inference.settings import Settings  # only needed by commands that use models
        from memctl.text.toml import read_table

        place = f"{family}.{name}"
        table = read_table(self.path, place, entry, *kinds)
        what, hidden = f"the key of {name!r}", self.secret_variables
        return ConfiguredModel(
            Settings(name, entry["kind"], entry, hidden, family, self.path),
            secrets.source(self.path, place, table, "api_key", what, hidden),
        )


def _agents() -> Fleet:
    """Return the fleet of the coding agents that have sessions on this machine.

    Raises:
        UsageError: there is none.
    """
    stores = tuple(f"{agent.kind}:" for agent in agents.installed())
    if not stores:
        looked = ", ".join(str(agent.folder) for agent in agents.AGENTS.values())
        raise UsageError(
            f"@{agents.FLEET}: no coding agent has kept sessions on this machine",
            f"memctl looked in {looked}; name another folder, such as claude-code:DIR",
        )
    return Fleet(agents.FLEET, stores)


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
        if not content:
            return Config(path, found=True)
        from memctl.config.file import read_file  # slow to load

        found = read_file(path, content)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", 'quote strings: "..."') from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deep", "no setting is a list of lists") from error
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


def refuse_unknown_store(path: Path, place: str, name: str, known: Iterable[str]) -> None:
    """Refuse a table of the configuration file ``path`` that names a store it does not have.

    ``place`` is the name of the table, and ``known`` are the names of the stores.

    Raises:
        UsageError: ``name`` is no store; the hint names a similar store.
    """
    if name not in known:
        hint = did_you_mean(name, known, "[stores.NAME] configures one")
        if name.startswith("@"):
            hint = "name stores, not a fleet"
        raise UsageError(f"{path}: {place}: there is no store named {name!r}", hint)


def _unknown(what: str, name: str, known: Iterable[str], sign: str = "") -> UsageError:
    hint = did_you_mean(
        sign + name, [sign + one for one in known], f"[{what}s.NAME] configures one"
    )
    return UsageError(f"there is no {what} named {name!r} in the configuration", hint)


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
