"""Makes the modules importable that code for verl's interactions imports, where verl has none.

verl had interactions up to 0.7.1. Where no verl is installed, or a later one, the modules listed
here are supplied; whatever the installed verl has itself is imported from there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES: dict[str, str | None] = {
    "verl": None,
    "verl.interactions": None,
    "verl.interactions.base": "vagentrl.interactions.base",
    "verl.interactions.gsm8k_interaction": "vagentrl.interactions.verl_gsm8k",
    "verl.interactions.utils": None,
    "verl.interactions.utils.interaction_registry": "vagentrl.interactions.registry",
    "verl.utils": None,
    "verl.utils.reward_score": None,
    "verl.utils.reward_score.gsm8k": "vagentrl.interactions.gsm8k",
}
"""The modules that are supplied, and the module of vagentrl that each of them is; None for an empty
package."""


def install_verl_shim() -> None:
    """Let ``verl.interactions.base`` and the other `MODULES` be imported. Calling it again does
    nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # at the end, so that an installed verl is found first


class _Finder(MetaPathFinder):
    """Finds the supplied modules. Python asks it for what no other finder has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        home = MODULES[fullname]
        return ModuleSpec(fullname, _Loader(home), is_package=home is None)


class _Loader(Loader):
    """Loads an empty package, or an existing module under a second name.

    Args:
        home: Name of the existing module.
    """

    def __init__(self, home: str | None) -> None:
        self._home = home
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if self._home is None:
            return None
        module = import_module(self._home)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._own_spec is not None:  # the import system has set the one of the second name
            module.__spec__ = self._own_spec
