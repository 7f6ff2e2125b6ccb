"""Whether the methods of a part take the arguments that it will be called with."""

from __future__ import annotations

import inspect

from vagentrl.errors import PartError


def check_signatures(part: object) -> None:
    """Refuse a part one of whose methods takes other arguments than the method that it overrides.

    Raises:
        PartError: With the arguments that the method is called with.
    """
    kind = type(part)
    for base in kind.__mro__[1:]:
        for name, method in vars(base).items():
            own = getattr(kind, name)
            if name == "__init__" or not inspect.isfunction(method) or not inspect.isfunction(own):
                continue
            wanted, given = inspect.signature(method), inspect.signature(own)
            if not _takes(given, wanted):
                raise PartError(
                    f"{kind.__name__}.{name} takes {_in_short(given)}, but is called with "
                    f"{_in_short(wanted)}; write it as `def {name}{_in_short(wanted)}`"
                )


def _takes(given: inspect.Signature, wanted: inspect.Signature) -> bool:
    parameters = wanted.parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return True  # as `torch.nn.Module.forward`: it leaves the arguments open
    keywords = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    try:
        given.bind(*positional, **keywords)
    except TypeError:
        return False
    return True


def _in_short(signature: inspect.Signature) -> str:
    """The parameters without their types."""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))
