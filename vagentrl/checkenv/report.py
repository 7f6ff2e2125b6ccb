"""What the checker reports: findings, measurements, and their rows in tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vagentrl.environment import Split

TABLE_HEAD = (
    "| environment | random | constant | oracle | distinct states | steps/s | reset ms "
    "| observation | extra | licence |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)
"""Head of the table that `Report.row` gives a row of."""


@dataclass(frozen=True)
class Finding:
    """The verdict of one check.

    Attributes:
        check: What was checked.
        verdict: ``not checked`` where the environment lacks what the check needs.
        seen: What was seen.
        wanted: What was wanted instead, for a failure.
        advice: What to try, for a failure.
    """

    check: str
    verdict: Literal["pass", "fail", "not checked"]
    seen: str
    wanted: str = ""
    advice: str = ""

    def __str__(self) -> str:
        mark = {"pass": "ok", "fail": "FAIL", "not checked": "-"}[self.verdict]
        parts = [self.seen]
        if self.wanted:
            parts.append(f"wanted: {self.wanted}")
        if self.advice:
            parts.append(f"try: {self.advice}")
        indent = "\n" + " " * 34
        return f"{mark:>6}  {self.check:<25} {indent.join(parts)}"


def passed(check: str, seen: str) -> Finding:
    """The finding of a check that found nothing wrong."""
    return Finding(check, "pass", seen)


def failed(check: str, seen: str, wanted: str, advice: str) -> Finding:
    """The finding of a check that found a mistake."""
    return Finding(check, "fail", seen, wanted, advice)


def unchecked(check: str, reason: str) -> Finding:
    """The finding of a check that the environment gives nothing to check for."""
    return Finding(check, "not checked", reason)


@dataclass(frozen=True)
class Rate:
    """What some way to play earned.

    Attributes:
        success: Share of the episodes that were solved; None if the environment reports no success.
        mean_return: Mean sum of rewards of an episode.
        turns: Mean number of turns of an episode.
        episodes: Number of episodes.
    """

    success: float | None
    mean_return: float
    turns: float
    episodes: int

    def __str__(self) -> str:
        if self.success is None:
            return f"return {self.mean_return:.2f}"
        return f"{self.success:.0%} ({self.mean_return:.2f})"


@dataclass(frozen=True)
class Skill:
    """What ways to play earn, and how fast the environment answers.

    Attributes:
        random: Random play; None if the environment draws no random actions.
        constant: The best reply that is always the same.
        constant_reply: That reply.
        oracle: The oracle's play; None if there is no oracle.
        steps_per_s: Steps in a second of one thread.
        reset_ms: Median time of a reset.
        characters: Characters of the longest observation.
        pixels: Width and height of its largest image; None without images.
    """

    random: Rate | None
    constant: Rate | None
    constant_reply: str
    oracle: Rate | None
    steps_per_s: float
    reset_ms: float
    characters: int
    pixels: tuple[int, int] | None


@dataclass(frozen=True)
class StateCounts:
    """Initial states of the first seeds of each split.

    Attributes:
        tried: Number of seeds of each split.
        distinct: Number of different initial states in each split.
        drawn_in_training: Different held-out states that a training seed starts from too.
    """

    tried: int
    distinct: Mapping[Split, int]
    drawn_in_training: int

    def __str__(self) -> str:
        return " / ".join(f"{count:,}" for count in self.distinct.values())


@dataclass(frozen=True)
class Checked:
    """What one check returns: its findings, and what it measured."""

    findings: tuple[Finding, ...]
    skill: Skill | None = None
    states: StateCounts | None = None


@dataclass(frozen=True)
class Report:
    """All that was found out about an environment.

    Attributes:
        name: Name of the environment.
        findings: The verdict of each check.
        skill: What play earns; None if the checks that measure it failed.
        states: The initial states; None if unknown.
        extra: The extra of its package that installs its libraries; empty for none.
        licence: Licences of its package and of the libraries in the extra.
    """

    name: str
    findings: tuple[Finding, ...]
    skill: Skill | None = None
    states: StateCounts | None = None
    extra: str = ""
    licence: str = ""

    @property
    def sound(self) -> bool:
        """Whether no check failed."""
        return all(finding.verdict != "fail" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join([self.name, *map(str, self.findings)])

    def line(self) -> str:
        """The report in a line: the number of findings of each kind, and the checks that failed."""
        verdicts = [finding.verdict for finding in self.findings]
        wrong = "; ".join(f"{f.check}: {f.seen}" for f in self.findings if f.verdict == "fail")
        mark = "ok" if self.sound else "FAIL"
        return (
            f"{mark:>6}  {self.name:<44} {verdicts.count('pass')} pass, "
            f"{verdicts.count('fail')} fail, {verdicts.count('not checked')} not checked"
            + (f": {wrong}" if wrong else "")
        )

    def row(self) -> str:
        """The environment's row of the table with `TABLE_HEAD`."""
        skill = self.skill
        cells = ["-"] * 3 if skill is None else [
            "-" if rate is None else str(rate)
            for rate in (skill.random, skill.constant, skill.oracle)
        ]  # fmt: skip
        cells.append("unknown" if self.states is None else str(self.states))
        if skill is None:
            cells += ["-"] * 3
        else:
            seen = [f"{skill.characters:,} characters"]
            if skill.pixels is not None:
                seen.append("{} × {} pixels".format(*skill.pixels))
            digits = 0 if skill.reset_ms >= 10 else 2
            reset = f"{skill.reset_ms:,.{digits}f}"
            cells += [f"{skill.steps_per_s:,.0f}", reset, ", ".join(seen)]
        cells += [self.extra or "none", self.licence or "unknown"]
        name = self.name.rpartition(".")[2]
        return "| " + " | ".join([f"`{name}`", *cells]).replace("\n", " ") + " |"
