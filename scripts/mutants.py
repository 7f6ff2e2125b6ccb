"""Mutants of a module: copies with one small change each, by the operators of mutmut."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import libcst as cst  # pyright: ignore[reportMissingImports]
from mutmut.mutation.mutators import (  # pyright: ignore[reportMissingImports]
    mutation_operators,
    operator_string,
)


@dataclass(frozen=True)
class Mutant:
    """A module with one change.

    Attributes:
        file: Path of the module from the project's root.
        line: Number of the first changed line.
        was: The changed lines before, without indentation.
        now: The changed lines after.
        source: The whole module after the change.
    """

    file: str
    line: int
    was: str
    now: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The change without its line number, which moves with every edit above it."""
        return self.file, self.was, self.now


@cache
def mutants_of(root: Path, file: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines.

    Annotations, decorators, imports, docstrings and type aliases are left as they are, and so is
    what is said in errors and log messages: any text with a space.
    """
    module = cst.parse_module((root / file).read_text())
    found: dict[str, Mutant] = {}
    for node, changed in _changes(module):
        source = module.deep_replace(node, changed).code
        if source != module.code and source not in found and _compiles(source):
            found[source] = _describe(file, module.code, source)
    return sorted(found.values(), key=lambda mutant: mutant.line)


def _changes(module: cst.Module) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    pending: list[cst.CSTNode] = [module]
    while pending:
        node = pending.pop()
        if _is_left_alone(node):
            continue
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                changes = list(operator(node))
                # one change of a string is enough: the others change its case
                yield from (
                    (node, one) for one in changes[: 1 if operator is operator_string else None]
                )
        pending += reversed(node.children)


def _is_left_alone(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Raise | cst.Import | cst.ImportFrom):
        return True
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.Expr):  # a docstring, or what is logged
        call = node.value
        return isinstance(call, cst.BaseString) or (
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and isinstance(call.func.value, cst.Name)
            and call.func.value.value == "log"
        )
    if isinstance(node, cst.Assign):
        names = [t.target.value for t in node.targets if isinstance(t.target, cst.Name)]
        literal = "Literal[" in cst.Module([]).code_for_node(node.value)
        return literal or names in (["__all__"], ["log"])
    return False


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _describe(file: str, before: str, after: str) -> Mutant:
    old, new = before.splitlines(), after.splitlines()
    changes = [
        change
        for change in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if change[0] != "equal"
    ]
    start, end = changes[0][1], changes[-1][2]
    new_start, new_end = changes[0][3], changes[-1][4]
    return Mutant(
        file,
        start + 1,
        " ".join(line.strip() for line in old[start:end]),
        " ".join(line.strip() for line in new[new_start:new_end]),
        after,
    )
