"""A log file of claims, true states and verdicts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from vagentrl.claims.judgement import Judgement, drawn
from vagentrl.errors import ConfigError
from vagentrl.types import Claim

log = logging.getLogger(__name__)


class JudgementLog:
    """Writes judgements to ``judgements.jsonl`` in the run's folder, one JSON object per line.

    Failures, filtered claims, penalised claims and disagreements of two judges are always written.
    Where the file cannot be written, the run goes on without it after one warning.

    Args:
        share: Fraction of the other judgements that is written.
    """

    def __init__(self, share: float = 0.05) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"JudgementLog.share is {share}; give a number from 0 to 1")
        self.share = share
        self._warned = False

    def write(
        self,
        folder: Path,
        origin: dict[str, int | str],
        judgements: Iterable[tuple[Judgement, bool]],
    ) -> None:
        """Append to the log.

        Args:
            folder: The run's folder.
            origin: Fields added to each line, which say where the claims come from.
            judgements: Pairs of a judgement and whether its two judges disagree.
        """
        lines = [
            json.dumps(origin | _record(judgement, differs), ensure_ascii=False)
            for judgement, differs in judgements
            if differs or _is_notable(judgement) or self._samples(judgement.claim, origin)
        ]
        if not lines:
            return
        path = folder / "judgements.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write("\n".join(lines) + "\n")
        except OSError as error:
            if not self._warned:
                log.warning("judgements are not written to %s: %s", path, error)
            self._warned = True

    def _samples(self, claim: Claim, origin: dict[str, int | str]) -> bool:
        return drawn(self.share, "log", claim.kind, claim.text, *origin.values())


def _is_notable(judgement: Judgement) -> bool:
    return judgement.filtered or judgement.failure is not None or judgement.penalty > 0


def _record(judgement: Judgement, differs: bool) -> dict[str, object]:
    claim, verdict, second = judgement.claim, judgement.verdict, judgement.second
    record: dict[str, object] = {
        "kind": claim.kind,
        "claim": claim.text,
        "truth": claim.truth,
        "representation": claim.representation,
        "state": vars(claim.state),
        "rubric": claim.rubric,
        "score": None if verdict is None else verdict.score,
        "reason": judgement.failure if verdict is None else verdict.reason,
    }
    if judgement.filtered:
        record["filtered"] = True
    if judgement.penalty:
        record["penalty"] = judgement.penalty
    if second is not None:
        record |= {"second_score": second.score, "second_reason": second.reason, "differ": differs}
    return record
