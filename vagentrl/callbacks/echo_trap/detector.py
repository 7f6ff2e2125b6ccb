"""Decides from an iteration's numbers whether a run is collapsing.

A healthy run loses entropy, variety and differences within groups too: it pays with them for
success. So an iteration is compared with the run's own numbers from when its success last rose, and
losses since then were for nothing. On a plateau the success is always a little below its best, and
the entropy goes on falling. So these two are weak evidence, and there is no alarm before something
stronger joins them, for several iterations in a row. Only a loss of success that no plateau
explains is enough by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any, Literal

SMOOTHED = 3
"""Iterations over which numbers are averaged before they are compared."""
WINDOW = 20
"""Past iterations among which a gradient norm must stand out to be a spike."""
LEAST_WINDOW = 5
"""Past iterations that are needed to tell a spike."""
SPIKE = 6.0
"""Robust standard deviations above the median from which a gradient norm is a spike."""
SPIKES = 2
"""Spikes within the last `SPIKE_MEMORY` iterations that are trouble; a single one is noise."""
SPIKE_MEMORY = 5
FALLS = (2.0, 4.0, 6.0)
"""Standard errors by which success falls when that is weak evidence, strong evidence, and enough
for an alarm. The best of many iterations is partly luck, so a fall of two errors is common."""
HELD_OUT_FALLS = (2.0, 3.0, 4.0)
"""The same of held-out success, which varies less: the same tasks are played every time."""
RISE = 1.0
"""Standard errors by which success must rise before other numbers are compared with new ones."""
LEAST_FALLS = (0.05, 0.1, 0.1)
"""Progress that must be lost at least, however certain the loss is: near the ceiling errors are
small, and runs recover from dips."""
SHARE_ERRORS = 3.0
"""Standard errors by which a share of groups must rise beyond what its sign says at least."""
BONUS_ERRORS = 3.0
"""Standard errors by which bonuses must rise, and by a quarter, to count as earned instead of
success."""
WEAK, STRONG, ENOUGH = 1, 2, 3

Kind = Literal["progress", "reward", "signal", "variety", "stability"]

KINDS: dict[Kind, str] = {
    "progress": "the agent does worse",
    "reward": "bonuses rise without the success",
    "signal": "groups have less to compare",
    "variety": "replies become alike",
    "stability": "the update is unstable",
}
"""What each kind of trouble means, in words."""

Estimate = tuple[float, float]
"""A mean and its standard error; NaN where they are not known."""


@dataclass(frozen=True)
class Vitals:
    """The numbers of an iteration that the detector reads; NaN where one is not known.

    Attributes:
        iteration: Number of the iteration, from 1.
        success: Share of episodes that succeeded.
        success_error: Its standard error.
        reward: Mean return of the task, without bonuses.
        reward_error: Its standard error.
        groups: Number of groups of episodes.
        numbers: Other metrics by name. Those of `SIGNS` and ``gradient_norm`` are read.
        held_out: Share of held-out episodes that succeeded, if there was an evaluation.
        held_out_error: Its standard error.
        bonus: Mean of what the policy learns from besides the task's return.
        bonus_error: Its standard error.
    """

    iteration: int
    success: float
    success_error: float
    reward: float
    reward_error: float
    groups: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    held_out: float = math.nan
    held_out_error: float = math.nan
    bonus: float = math.nan
    bonus_error: float = math.nan


@dataclass(frozen=True)
class Sign:
    """A change of one number, since the success last rose, that is a sign of trouble.

    Attributes:
        name: The number in `Vitals.numbers`.
        kind: The kind of trouble.
        words: What the number is, in a warning.
        factor: It is a sign above this multiple of what it was; below, if it is a fall.
        plus: Added to the multiple.
        weight: How strong the evidence is.
        fall: Whether a fall is the sign, and not a rise.
        worse: Whether it is a sign only if the success, or that of held-out episodes, is below its
            best by more than a standard error: at the ceiling the number changes by itself.
    """

    name: str
    kind: Kind
    words: str
    factor: float
    plus: float = 0.0
    weight: int = WEAK
    fall: bool = False
    worse: bool = False

    def shows(self, now: float, before: float) -> bool:
        """Whether the number has changed as far; never where one of the two is NaN."""
        limit = self.factor * before + self.plus
        return now < limit if self.fall else now > limit


SIGNS = (
    Sign("failed_alike", "signal", "groups in which all episodes fail alike", 1.0, 0.15, STRONG),
    Sign("group_std", "signal", "spread of returns within groups", 0.6, fall=True, worse=True),
    Sign("entropy", "variety", "token entropy", 0.7, fall=True),
    Sign("similarity", "variety", "likeness of replies to different prompts", 1.25, 0.04, STRONG),
    Sign("opening_share", "variety", "share of the most frequent opening", 1.25, 0.08, STRONG),
    Sign("template_share", "variety", "share of the most frequent template", 1.25, 0.08, STRONG),
    Sign("repeated_within", "variety", "repetition within replies", 1.25, 0.08, STRONG),
    Sign(
        "mutual_information", "variety", "information of prompts on replies", 0.6, -0.1, fall=True
    ),
    Sign("without_thought", "variety", "replies without a thought", 1.0, 0.2),
    Sign("entropy", "stability", "token entropy", 1.5),
    Sign("approximate_kl", "stability", "step of the policy", 3.0, 0.03, STRONG, worse=True),
    Sign("malformed_replies", "stability", "malformed replies", 1.0, 0.1, STRONG),
)


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble.

    Attributes:
        kind: The kind.
        reasons: What shows it, in words with numbers.
        weight: The weight of the strongest reason.
        since: The iteration from which on it has shown without a break.
    """

    kind: Kind
    reasons: tuple[str, ...]
    weight: int
    since: int


@dataclass(frozen=True)
class Verdict:
    """What the detector says about an iteration.

    Attributes:
        troubles: All kinds of trouble that show.
        alarm: Whether they show a collapse.
        begins: Whether the alarm was off in the iteration before.
        news: The troubles of an alarm that it was not yet told for.
    """

    troubles: tuple[Trouble, ...]
    alarm: bool
    begins: bool
    news: tuple[Trouble, ...]


class Detector:
    """Follows a run, iteration by iteration.

    Args:
        patience: Iterations in a row in which troubles must show before there is an alarm, and in
            which they must not before it ends.
        evidence: What the weights of the troubles, of two kinds at least, must sum up to. A loss of
            success that is far beyond chance needs no second kind.
    """

    def __init__(self, patience: int = 2, evidence: int = 3) -> None:
        self.patience = patience
        self.evidence = evidence
        self._recent: list[Vitals] = []
        self._succeeded = False  # progress is measured by success once there is any
        self._best: Vitals | None = None  # smoothed, from when the run did best
        self._base: Vitals | None = None  # smoothed, from when the success last rose
        self._best_held_out: Vitals | None = None  # smoothed, from the best evaluation
        self._since: dict[str, int] = {}
        self._in_a_row = self._calm = 0
        self._told: list[str] = []

    def observe(self, vitals: Vitals) -> Verdict:
        """Add an iteration and judge the run."""
        self._succeeded = self._succeeded or vitals.success > 0
        self._recent = [*self._recent, vitals][-WINDOW - 1 :]
        now = smoothed(self._recent[-SMOOTHED:])
        if self._best is None or _higher(self._progress(now), self._progress(self._best)):
            self._best = now
        if self._best_held_out is None or _higher(_held_out(now), _held_out(self._best_held_out)):
            self._best_held_out = now
        if self._base is None or self._gained(now, self._base, self._best_held_out):
            self._base = _completed(now, self._base)
        else:  # what is measured now and then may not have been known then
            self._base = _completed(self._base, now)
        found = self._troubles(now)
        self._since = {kind: self._since.get(kind, vitals.iteration) for kind in found}
        return self._judge(
            tuple(
                Trouble(kind, tuple(reasons), max(reasons.values()), self._since[kind])
                for kind, reasons in found.items()
            )
        )

    def forget_recent(self) -> None:
        """Leave the last iterations out of what follows, as the run went back to before them."""
        self._recent, self._since, self._told = [], {}, []
        self._in_a_row = self._calm = 0

    def _judge(self, troubles: tuple[Trouble, ...]) -> Verdict:
        together = len(troubles) > 1 or any(trouble.weight >= ENOUGH for trouble in troubles)
        together = together and sum(trouble.weight for trouble in troubles) >= self.evidence
        if not self._succeeded:  # who earns alike may be done: only a fall tells the difference
            together = together and any(trouble.kind == "progress" for trouble in troubles)
        self._in_a_row = self._in_a_row + 1 if together else 0
        self._calm = 0 if together else self._calm + 1
        if self._calm >= self.patience:
            self._told = []
        alarm = self._in_a_row >= self.patience
        news = tuple(t for t in troubles if alarm and t.kind not in self._told)
        begins = alarm and not self._told
        self._told += [trouble.kind for trouble in news]
        return Verdict(troubles, alarm, begins, news)

    def _gained(self, now: Vitals, base: Vitals, best_held_out: Vitals) -> bool:
        """Whether success rose, and not on training tasks alone."""
        if _lower(_held_out(now), _held_out(best_held_out)):
            return False
        return _higher(self._progress(now), self._progress(base), RISE)

    def _progress(self, vitals: Vitals) -> Estimate:
        """What must not fall."""
        if self._succeeded:
            return vitals.success, vitals.success_error
        return vitals.reward, vitals.reward_error

    def _troubles(self, now: Vitals) -> dict[Kind, dict[str, int]]:
        """The weights of all reasons for trouble, by their words, for each kind."""
        assert self._best is not None and self._best_held_out is not None and self._base is not None
        found: dict[Kind, dict[str, int]] = {}
        if (spikes := self.spikes()) >= SPIKES:
            text = f"{spikes} spikes of the gradient norm in the last {SPIKE_MEMORY} iterations"
            found["stability"] = {text: WEAK}
        top, level = self._progress(self._best), self._progress(now)
        name = "success" if self._succeeded else "return"
        held_out = _held_out(self._best_held_out), _held_out(now)
        fallen = _fall(name, top, level, FALLS) | _fall(
            "held-out success", *held_out, HELD_OUT_FALLS
        )
        if fallen:
            found["progress"] = fallen
        worse = _lower(level, top) or _lower(_held_out(now), _held_out(self._best_held_out))
        if _paid_more(now, self._base):
            text = f"bonuses {self._base.bonus:.3g} → {now.bonus:.3g}"
            found["reward"] = {text: STRONG if worse else WEAK}
        for sign in SIGNS:
            before = self._base.numbers.get(sign.name, math.nan)
            current = now.numbers.get(sign.name, math.nan)
            if not sign.shows(current, before) or (sign.worse and not worse):
                continue
            if sign.name == "failed_alike" and not _differ(before, current, now.groups):
                continue
            text = f"{sign.words} {before:.3g} → {current:.3g}"
            found.setdefault(sign.kind, {})[text] = sign.weight
        return found

    @property
    def base_iteration(self) -> int:
        """The iteration in which the success last rose, with whose numbers others are compared."""
        return 0 if self._base is None else self._base.iteration

    def spike(self, back: int = 0) -> float:
        """By how many robust standard deviations a gradient norm stood out from those before it.

        Args:
            back: How many iterations ago.
        """
        norms = [vitals.numbers.get("gradient_norm", math.nan) for vitals in self._recent]
        end = len(norms) - back
        return robust_score(norms[end - 1], norms[: end - 1]) if end > 0 else math.nan

    def spikes(self) -> int:
        """The number of spikes in the last iterations."""
        return sum(self.spike(back) > SPIKE for back in range(SPIKE_MEMORY))

    def state_dict(self) -> dict[str, Any]:
        """Everything that was observed, in plain types."""
        return {
            "recent": [asdict(vitals) for vitals in self._recent],
            "best": None if self._best is None else asdict(self._best),
            "base": None if self._base is None else asdict(self._base),
            "best_held_out": None if self._best_held_out is None else asdict(self._best_held_out),
            "succeeded": self._succeeded,
            "since": dict(self._since),
            "in_a_row": self._in_a_row,
            "calm": self._calm,
            "told": list(self._told),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._recent = [Vitals(**vitals) for vitals in state["recent"]]
        self._best = None if state["best"] is None else Vitals(**state["best"])
        self._base = None if state["base"] is None else Vitals(**state["base"])
        held_out = state["best_held_out"]
        self._best_held_out = None if held_out is None else Vitals(**held_out)
        self._succeeded = state["succeeded"]
        self._since = dict(state["since"])
        self._in_a_row, self._calm = state["in_a_row"], state["calm"]
        self._told = list(state["told"])


def _held_out(vitals: Vitals) -> Estimate:
    return vitals.held_out, vitals.held_out_error


def _higher(now: Estimate, before: Estimate, errors: float = 0.0) -> bool:
    """Whether a mean is higher than before by more than so many standard errors.

    A mean that is known is higher than one that was not.
    """
    if math.isnan(before[0]):
        return not math.isnan(now[0])
    return now[0] > before[0] + errors * math.hypot(now[1], before[1])


def _lower(now: Estimate, before: Estimate) -> bool:
    """Whether a mean is lower than before by more than a standard error."""
    return before[0] - now[0] > math.hypot(now[1], before[1])


def _fall(name: str, before: Estimate, now: Estimate, falls: tuple[float, ...]) -> dict[str, int]:
    """The weight of a fall as evidence, by what it is in words; empty without one."""
    lost, noise = before[0] - now[0], math.hypot(now[1], before[1])
    limits = [max(n * noise, least) for n, least in zip(falls, LEAST_FALLS, strict=True)]
    weight = sum(lost > limit for limit in limits)
    return {f"{name} {before[0]:.3g} → {now[0]:.3g}": weight} if weight else {}


def _paid_more(now: Vitals, before: Vitals) -> bool:
    """Whether bonuses rose by a quarter, and by more than chance."""
    rise, noise = now.bonus - before.bonus, math.hypot(now.bonus_error, before.bonus_error)
    return now.bonus > 0 and rise > max(BONUS_ERRORS * noise, 0.25 * abs(before.bonus))


def robust_score(value: float, earlier: Sequence[float]) -> float:
    """By how many robust standard deviations the logarithm of a norm is above the median.

    The robust standard deviation is 1.4826 × the median absolute deviation (MAD), and at least a
    tenth: a norm that hardly ever changes would make a spike of any change.

    Args:
        value: The norm.
        earlier: Norms to compare with; those that are not positive and finite do not count.

    Returns:
        NaN if the value or too many of the others do not count.
    """
    logs = [math.log(norm) for norm in earlier if 0 < norm < math.inf]
    if len(logs) < LEAST_WINDOW or not 0 < value < math.inf:
        return math.nan
    middle = median(logs)
    deviation = 1.4826 * median(abs(each - middle) for each in logs)
    return (math.log(value) - middle) / max(deviation, 0.1)


def _differ(before: float, now: float, groups: int) -> bool:
    """Whether two shares of about as many groups differ by more than chance."""
    middle = (before + now) / 2
    error = math.sqrt(2 * middle * (1 - middle) / max(groups, 1))
    return now - before > SHARE_ERRORS * error


def smoothed(recent: Sequence[Vitals]) -> Vitals:
    """The means over iterations, without those in which a number is not known."""
    names = {name for vitals in recent for name in vitals.numbers}
    return Vitals(
        recent[-1].iteration,
        _mean([vitals.success for vitals in recent]),
        _error([vitals.success_error for vitals in recent]),
        _mean([vitals.reward for vitals in recent]),
        _error([vitals.reward_error for vitals in recent]),
        sum(vitals.groups for vitals in recent),
        {name: _mean([vitals.numbers.get(name, math.nan) for vitals in recent]) for name in names},
        _mean([vitals.held_out for vitals in recent]),
        _error([vitals.held_out_error for vitals in recent]),
        _mean([vitals.bonus for vitals in recent]),
        _error([vitals.bonus_error for vitals in recent]),
    )


def _completed(vitals: Vitals, other: Vitals | None) -> Vitals:
    """The numbers of an iteration; those that are not known, from another one."""
    if other is None:
        return vitals
    known = {name: value for name, value in vitals.numbers.items() if not math.isnan(value)}
    return replace(vitals, numbers={**other.numbers, **known})


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


def _error(errors: Sequence[float]) -> float:
    """The standard error of the mean of independent numbers with these errors."""
    known = [error for error in errors if math.isfinite(error)]
    return math.sqrt(sum(error**2 for error in known)) / len(known) if known else math.nan
