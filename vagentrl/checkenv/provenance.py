"""Which extra and which licences an environment brings with it, read from installed packages."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution, entry_points, metadata, requires

from vagentrl.checkenv.bench import Bench

FOR_DEVELOPERS = ("dev", "mutation", "test", "docs")
"""Extras that no environment needs."""


def loaded_modules(bench: Bench) -> frozenset[str]:
    """Top-level names of the modules that are imported, with the module of the environment."""
    kind = type(bench.environment)
    return frozenset({name.partition(".")[0] for name in sys.modules} | {kind.__module__})


def extra_and_licence(modules: frozenset[str]) -> tuple[str, str]:
    """The extras all of whose libraries are imported, and the licences of the package and of those
    libraries. (One library alone says little: others may import it too.)

    Args:
        modules: What `loaded_modules` returns.
    """
    owner = _owner(modules)
    if owner is None:
        return "", ""
    extras: dict[str, list[str]] = {}
    for requirement in requires(owner) or []:
        found = re.match(r"([\w.\-]+).*;.*extra == ['\"]([\w\-]+)['\"]", requirement)
        if found is None or found[2] in FOR_DEVELOPERS:
            continue
        extras.setdefault(found[2], []).append(found[1])
    extras = {
        extra: names
        for extra, names in extras.items()
        if all(_import_names(name) & modules for name in names)
    }
    libraries = dict.fromkeys(name for names in extras.values() for name in names)
    licences = dict.fromkeys(filter(None, map(_licence, [owner, *libraries])))
    return ", ".join(extras), ", ".join(licences)


def _owner(modules: frozenset[str]) -> str | None:
    """The package that brings plug-ins from beside the environment's module."""
    # Only the environment's own module is there with its dots.
    packages = {name.partition(".")[0] for name in modules if "." in name}
    for plugin in entry_points(group="vagentrl.plugins"):
        if plugin.module.partition(".")[0] in packages and plugin.dist is not None:
            return plugin.dist.name
    return None


def _import_names(package: str) -> set[str]:
    """The names under which a package is imported; empty if it is not installed."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return set()
    tops = {file.parts[0].partition(".")[0] for file in files if file.suffix in (".py", ".so")}
    return {top for top in tops if top.isidentifier()}


def _licence(package: str) -> str:
    """A package's licence in a word or two."""
    try:
        known = metadata(package)
    except PackageNotFoundError:
        return ""
    named = [c for c in known.get_all("Classifier") or [] if c.startswith("License ::")]
    expression, free = known.get_all("License-Expression"), known.get_all("License")
    short = expression[0] if expression else named[0].rpartition(":: ")[2] if named else ""
    text = short or (free[0].strip().partition("\n")[0] if free else "")
    return re.sub(r"^(The )?MIT License$", "MIT", text.replace(" Software License", ""))[:40]
