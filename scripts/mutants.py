"""Mutants of a module: copies with one small change each, by the operators of mutmut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from pathlib import Path

import libcst as cst  # pyright: ignore[reportMissingImports]
from libcst.metadata import (  # pyright: ignore[reportMissingImports]
    WhitespaceInclusivePositionProvider,
)
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
    text = (root / file).read_text()
    wrapper = cst.MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    positions = wrapper.resolve(WhitespaceInclusivePositionProvider)
    module = wrapper.module
    starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    found: dict[str, Mutant] = {}
    for node, changed in _changes(module):
        place = positions[node]
        start = starts[place.start.line - 1] + place.start.column
        end = starts[place.end.line - 1] + place.end.column
        if module.code_for_node(node) == text[start:end]:
            source = text[:start] + module.code_for_node(changed) + text[end:]
        else:  # several lines, which are indented by what is around them
            source = cst.ensure_type(module.deep_replace(node, changed), cst.Module).code
        if source != text and source not in found and _compiles(source):
            found[source] = _describe(file, text, source)
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
    start = _shared(old, new)
    same = _shared(old[start:][::-1], new[start:][::-1])
    return Mutant(
        file,
        start + 1,
        " ".join(line.strip() for line in old[start : len(old) - same]),
        " ".join(line.strip() for line in new[start : len(new) - same]),
        after,
    )


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines are the same from the first on."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
