"""Finds and makes the interactions that rows name, from YAML in verl's form."""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from vagentrl.errors import ConfigError, RowError, VagentError, seen, where
from vagentrl.interactions.base import BaseInteraction
from vagentrl.interactions.session import accepts
from vagentrl.interactions.verl_shim import install_verl_shim

log = logging.getLogger(__name__)

FALLBACK = "gsm8k"
"""The interaction of rows that name none, as in verl."""

_SUFFIX = "Interaction"
_FORM = "interaction: [{name: …, class_name: package.module.Class, config: {…}}]"
_METHODS = ("start_interaction", "generate_response", "calculate_score", "finalize_interaction")


class NoSuchModule(ConfigError, ModuleNotFoundError):
    """The module of a ``class_name`` cannot be found."""


@dataclass(frozen=True)
class Entry:
    """An interaction as the configuration names it.

    Attributes:
        name: The name by which rows choose it.
        class_name: Dotted path of its class.
        config: What its class is made with, without the name.
    """

    name: str
    class_name: str
    config: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> BaseInteraction:
        """A new object of the class.

        Raises:
            ConfigError: When the class cannot be found or made.
        """
        kind = get_interaction_class(self.class_name)
        try:
            interaction = kind(config={**deepcopy(dict(self.config)), "name": self.name})
        except VagentError:
            raise
        except Exception as error:  # the boundary
            raise ConfigError(
                f"interaction {self.name!r}: {self.class_name}(config=…) failed: {where(error)}"
            ) from error
        check_interaction(interaction)
        return interaction


def get_interaction_class(cls_name: str) -> Any:
    """The class with this dotted path. Modules of verl that it imports are supplied if need be.

    Raises:
        ConfigError: When there is none; a `NoSuchModule` when its module is missing.
    """
    install_verl_shim()
    module_name, _, simple_name = cls_name.rpartition(".")
    if not module_name:
        raise ConfigError(f"class_name is {cls_name!r}; give a dotted path, package.module.Class")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise NoSuchModule(
            f"class_name is {cls_name!r}, but there is no module {error.name!r}; put the folder "
            "that it is in on PYTHONPATH. Of verl's own interactions, Gsm8kInteraction and "
            "BaseInteraction are here"
        ) from error
    except Exception as error:  # the boundary: a module of the user's
        raise ConfigError(f"{module_name} cannot be imported: {where(error)}") from error
    try:
        return getattr(module, simple_name)
    except AttributeError as error:
        raise ConfigError(
            f"class_name is {cls_name!r}, but {module_name} has no {simple_name!r}"
        ) from error


def check_interaction(interaction: object) -> None:
    """Refuse an object without the methods of an interaction; it need not derive from
    `BaseInteraction`.

    Raises:
        ConfigError: When methods are missing or take other arguments.
    """
    name = type(interaction).__name__
    missing = [method for method in _METHODS if not callable(getattr(interaction, method, None))]
    if isinstance(interaction, type) or missing:
        raise ConfigError(
            f"{seen(interaction)} is no interaction: it lacks {', '.join(missing) or 'an instance'}"
            "; derive its class from vagentrl.interactions.BaseInteraction, and write its methods "
            "with `async def`"
        )
    for method in ("calculate_score", "finalize_interaction"):
        bound = getattr(interaction, method)
        if not accepts(bound, "id") and not accepts(bound):
            raise ConfigError(
                f"{name}.{method} takes {inspect.signature(bound)}, but is called with the "
                f"instance_id alone; write it as `async def {method}(self, instance_id, **kwargs)`"
            )


def initialize_interactions_from_config(
    interaction_config_file: str | Path,
) -> dict[str, BaseInteraction]:
    """Make all interactions of a YAML file in verl's form.

    An entry without ``name`` is called as its class, in lower case and without ``Interaction`` at
    the end. An entry without ``config``, which verl refuses, has an empty one. The name is put into
    the config.

    Raises:
        ConfigError: When the file, an entry or a class is wrong. It is a `ValueError` too.
    """
    return {entry.name: entry.make() for entry in read_file(interaction_config_file)}


def read_file(path: str | Path) -> tuple[Entry, ...]:
    """The entries of a YAML file in verl's form.

    Raises:
        ConfigError: When it cannot be read, or an entry is wrong.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"interactions: {str(path)!r} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {seen(content)}; write {_FORM}")
    return read_entries({str(key): value for key, value in content.items()}, str(path))


def read_entries(content: Mapping[str, Any], source: str) -> tuple[Entry, ...]:
    """The entries of ``{interaction: […]}``.

    Args:
        content: The mapping.
        source: Where it comes from, for errors.

    Raises:
        ConfigError: When an entry is wrong, or two have the same name.
    """
    items = content.get("interaction")
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise ConfigError(f"`interaction` of {source} is {seen(items)}; write {_FORM}")
    entries: dict[str, Entry] = {}
    for item in items:
        entry = read_entry(item, source)
        if entry.name in entries:
            raise ConfigError(
                f"Duplicate interaction name {entry.name!r} found in {source}; give each entry a "
                "name of its own"
            )
        entries[entry.name] = entry
    return tuple(entries.values())


def read_entry(item: object, source: str) -> Entry:
    """One entry, ``{class_name: …, name: …, config: {…}}``; see `read_entries`."""
    match item:
        case {"class_name": str(class_name), **others}:
            name, config = others.get("name"), others.get("config")
        case _:
            raise ConfigError(f"an interaction of {source} is {seen(item)}; write {_FORM}")
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"`config` of {class_name} in {source} is {seen(config)}; write a mapping"
        )
    return Entry(default_name(class_name) if name is None else str(name), class_name, config or {})


def default_name(class_name: str) -> str:
    """The name of an entry without one: ``a.b.Gsm8kInteraction`` is called ``gsm8k``."""
    return class_name.rpartition(".")[2].removesuffix(_SUFFIX).lower()


class Interactions:
    """The interactions that rows can name.

    Args:
        source: The path of a YAML file in verl's form; or its content; or one interaction, as the
            dotted path of its class, as ``{class_name, name, config}``, or as an object.
        shared: Whether all conversations of the process have the same object of an interaction;
            otherwise each has its own.

    Raises:
        ConfigError: When the source is wrong, or a class cannot be found or made.
    """

    def __init__(
        self, source: str | Mapping[str, Any] | BaseInteraction, shared: bool = True
    ) -> None:
        self._given: dict[str, BaseInteraction] = {}
        self._entries: dict[str, Entry] = {}
        if isinstance(source, str | Path | Mapping):
            self._entries = {entry.name: entry for entry in _read(source)}
        else:
            check_interaction(source)
            name = getattr(source, "name", None) or default_name(type(source).__name__)
            self._given = {name: source}
            if not shared:
                raise ConfigError(
                    f"interactions is {seen(source)}, a single object, so trajectories cannot each "
                    "have their own; give its class, or instances: shared"
                )
        if not self.names:
            raise ConfigError(f"interactions {source!r} holds none; write {_FORM}")
        self._shared = shared
        self._examples = self._given or {name: _shared(e) for name, e in self._entries.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that rows may give."""
        return (*self._given, *self._entries)

    @property
    def replays(self) -> bool:
        """Whether all of them say that they answer the same when asked the same."""
        return all(getattr(one, "replays", False) is True for one in self._examples.values())

    def of_row(self, kwargs: Mapping[str, Any], number: int) -> BaseInteraction:
        """The interaction that a row names.

        Args:
            kwargs: The row's ``interaction_kwargs``.
            number: The row's number, for errors.

        Raises:
            RowError: When it names none that is known.
        """
        name = kwargs.get("name")
        if name is None:
            name = self._fallback()
        if name not in self.names:
            asked = "names no interaction" if name is None else f"names the interaction {name!r}"
            raise RowError(
                f"row {number} {asked}; known are {', '.join(self.names)}. Set `name` in its "
                "interaction_kwargs, or add the interaction to `interactions`"
            )
        return self._examples[name] if self._shared else self._entries[name].make()

    def _fallback(self) -> str | None:
        if FALLBACK in self.names:
            _warn_of_fallback()
            return FALLBACK
        return self.names[0] if len(self.names) == 1 else None


def _read(source: str | Path | Mapping[str, Any]) -> tuple[Entry, ...]:
    if isinstance(source, Mapping):
        items = source if "interaction" in source else {"interaction": [source]}
        return read_entries(items, "`interactions`")
    if Path(source).suffix in (".yaml", ".yml") or Path(source).is_file():
        return read_file(source)
    return (Entry(default_name(str(source)), str(source)),)


_making = threading.RLock()  # an interaction may make others
_made: dict[str, BaseInteraction] = {}  # the shared objects of this process
_warned = threading.Event()


def _shared(entry: Entry) -> BaseInteraction:
    """The object that all conversations of this process share, for all environments."""
    key = json.dumps([entry.name, entry.class_name, entry.config], sort_keys=True, default=repr)
    with _making:
        if key not in _made:
            _made[key] = entry.make()
        return _made[key]


def _warn_of_fallback() -> None:
    if not _warned.is_set():
        _warned.set()
        log.warning(
            "a row has no `name` in its interaction_kwargs; it is answered by %r, as in verl. Set "
            "`name` in every row to choose another interaction",
            FALLBACK,
        )
