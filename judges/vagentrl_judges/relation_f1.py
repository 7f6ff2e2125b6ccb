"""RelationF1: what a claim says of where things are, scored by rules."""

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
    """The F1 of the relations in a claim, in the mean over classes of things.

    The truth is the state's JSON: of each class the cell of its thing, or a list of cells. Claims
    in JSON and in symbols are read as they are, those in words by the parser. For each class, with
    *there* things in the state, *found* ones matched with a relation one to one (things of a class
    are interchangeable; the matching with the most credit counts), and *wrong* relations that are
    true of none of them::

        F1 = 2 * credit / (found + wrong + there)

    An exact relation earns a credit of 1: it gives row and column, or distances from the only
    thing of another class, measured from where that truly is. A vague one (a direction without a
    distance, a reference to one of several things) earns `vague_credit`. There is none for being
    near. To say again what is true costs nothing. A relation that closes a circle of references
    is wrong, for it says nothing new. A class that the state shows nothing of counts only when the
    claim speaks of it, and then with 0; a class of the state that the claim leaves out counts
    with 0.

    A claim that cannot be read, such as broken JSON, is the agent's doing: its score is 0.

    Args:
        parser: Reads claims in words; None is a ``RuleParser`` with its defaults.
        weights: Of the classes in the mean; 1 for those not named, and 0 leaves a class out.
        vague_credit: What a vague relation counts for, from 0 to 1.
        symbols: For claims in symbols: the classes that each symbol stands for, such as
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
                f"list of them, and got {claim.state.structured[:200]!r}; take another judge"
            )
        if unknown := set(self.weights) - set(truth):
            raise JudgeError(
                f"weights names {sorted(unknown)}, but the state has {sorted(truth)}; correct it"
            )
        return truth

    async def _relations(self, claim: Claim, truth: Truth) -> list[Relation]:
        match claim.representation:
            case "natural":
                return await self.parser.parse(claim.text, tuple(truth))
            case "structured":
                return cells_as_relations(read_state(claim.text) or {}, truth)
            case "symbolic":
                if self.symbols is None:
                    raise JudgeError(
                        "RelationF1 reads claims in symbols only with its setting symbols, which "
                        "names the classes that each stands for"
                    )
                return cells_as_relations(read_grid(claim.text, self.symbols), truth)
