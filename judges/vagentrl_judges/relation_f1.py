"""RelationF1: scores a claim's statements about the positions of objects, by rules."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ConfigError, JudgeError
from vagentrl_judges.relations import (
    Relation,
    RelationParser,
    Truth,
    cells_as_relations,
    check_weights,
    mean_f1,
    read_grid,
    read_state,
    score,
)
from vagentrl_judges.rule_parser import RuleParser


class RelationF1(Judge):
    """The mean, over classes of objects, of the F1 of a claim's relations.

    The truth is the state's JSON: for each class, the cell of its object or a list of cells.
    Structured and symbolic claims are read directly; natural-language claims are read by the
    parser. Relations and objects of a class are matched one to one for the most credit; objects
    of a class are interchangeable. For a class with *there* objects in the state, *found* matched
    objects, and *wrong* relations that are true of no object::

        F1 = 2 * (credit - surplus) / (found + wrong + there)

    but not below 0. The surplus is the number of places above the number of objects, so that
    naming several candidates for one object does not pay.

    An exact relation earns a credit of 1. It gives row and column, or distances from the only
    object of another class, measured from that object's true position. A vague relation (a
    direction without a distance, or a reference to one of several objects) earns `vague_credit`.
    A position that is nearly right earns nothing. Repeating a true relation costs nothing. A
    relation that closes a cycle of references is wrong, because it adds no information. A class
    without objects in the state counts only if the claim mentions it, and then with 0. A class
    with objects that the claim does not mention counts with 0.

    A claim that cannot be parsed, such as broken JSON, scores 0, because that is the agent's
    mistake.

    Args:
        parser: Reads natural-language claims; None for a ``RuleParser`` with its defaults.
        weights: Weight of each class in the mean; 1 for classes not named, and 0 ignores a class.
        vague_credit: Credit of a vague relation, from 0 to 1.
        symbols: For symbolic claims: the classes that each symbol stands for, such as
            ``{P: [player], X: [boxes], O: [targets], "*": [boxes, targets], S: [player,
            targets]}``.
    """

    def __init__(
        self,
        parser: RelationParser | None = None,
        weights: dict[str, float] | None = None,
        vague_credit: float = 0.5,
        symbols: dict[str, list[str]] | None = None,
    ) -> None:
        if find_spec("scipy") is None:
            raise ConfigError("RelationF1 needs the package scipy: pip install 'vagentrl[judges]'")
        if not 0 <= vague_credit <= 1:
            raise ConfigError(f"vague_credit is {vague_credit}; give a number from 0 to 1")
        if wrong := [symbol for symbol in symbols or {} if len(symbol) != 1]:
            raise ConfigError(f"symbols has {wrong}; a symbol is one character")
        check_weights(weights or {})
        self.parser = parser or RuleParser()
        self.weights = weights or {}
        self.vague_credit = vague_credit
        self.symbols = symbols

    def identity(self) -> str:
        settings = [sorted(self.weights.items()), self.vague_credit]
        settings.append(sorted((self.symbols or {}).items()))
        return f"RelationF1 {settings} {self.parser.identity()}"

    def metrics(self) -> Mapping[str, float]:
        return self.parser.metrics()

    async def probe(self) -> None:
        await self.parser.probe()

    async def judge(self, claim: Claim) -> Verdict:
        truth = self._truth(claim)
        relations = await self._relations(claim, truth)
        scores = score(relations, truth, self.vague_credit)
        reason = ", ".join(f"{name} {found}" for name, found in scores.items())
        return Verdict(mean_f1(scores, self.weights), reason)

    def _truth(self, claim: Claim) -> Truth:
        truth = read_state(claim.state.structured)
        if truth is None:
            raise JudgeError(
                f"RelationF1 needs a state whose JSON gives [row, column] for each class, or a "
                f"list of them, and got {claim.state.structured[:200]!r}; use another judge"
            )
        if unknown := set(self.weights) - set(truth):
            raise JudgeError(
                f"weights names {sorted(unknown)}, but the state has {sorted(truth)}; correct "
                "weights"
            )
        return truth

    async def _relations(self, claim: Claim, truth: Truth) -> list[Relation]:
        match claim.representation:
            case "natural":
                return await self.parser.parse(claim.text, tuple(truth))
            case "structured":
                return cells_as_relations(read_state(claim.text, tuple(truth)) or {}, truth)
            case "symbolic":
                if self.symbols is None:
                    raise JudgeError(
                        "RelationF1 reads symbolic claims only with its setting symbols, which "
                        "names the classes that each symbol stands for"
                    )
                return cells_as_relations(read_grid(claim.text, self.symbols), truth)
