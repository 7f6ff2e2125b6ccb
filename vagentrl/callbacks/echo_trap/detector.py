"""Decides from an iteration's numbers whether a run is collapsing.

A healthy run loses entropy, variety and differences within groups too: it pays with them for
success. So an iteration is compared with the run's own numbers from when its success last rose, and
losses since then were for nothing. On a plateau the success is always a little below its best, and
the entropy goes on falling. So these two are weak evidence, and there is no alarm before something
stronger joins them, for several iterations in a row. Only a loss of success that no plateau
explains, and updates that leap, are enough by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from vagentrl.callbacks.echo_trap.signs import ENOUGH, SIGNS, STRONG, WEAK, Kind
from vagentrl.callbacks.echo_trap.vitals import (
    LEAST_WINDOW,
    UNKNOWN,
    Estimate,
    Vitals,
    robust_score,
    smoothed,
)

SMOOTHED = 3
"""Iterations over which numbers are averaged before they are compared."""
WINDOW = 20
"""Past iterations among which a gradient norm must stand out to be a spike."""
SPIKE = 6.0
"""Robust standard deviations above the median from which a gradient norm is a spike."""
SPIKES = 2
"""Spikes within the last `SPIKE_MEMORY` iterations that are trouble; a single one is noise."""
SPIKE_MEMORY = 5
LEAP, LEAST_LEAP = 8.0, 0.02
"""An update is a leap if its KL divergence is so many times the median of the last `WINDOW`
iterations, and so many nats."""
LEAPS = 2
"""Leaps within the last `SPIKE_MEMORY` iterations that are trouble, and enough for an alarm: a
policy that leaps may fall in a single further update, before anything else shows."""
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
            success that is far beyond chance needs no second kind, and neither do leaps.
    """

    def __init__(self, patience: int = 2, evidence: int = 3) -> None:
        self.patience = patience
        self.evidence = evidence
        self._recent: list[Vitals] = []
        self._succeeded = False  # progress is measured by success once there is any
        self._best: Vitals | None = None  # smoothed, from when the run did best
        self._base: Vitals | None = None  # smoothed, from when the success last rose
        self._best_held_out = UNKNOWN  # smoothed
        self._since: dict[str, int] = {}
        self._in_a_row = self._calm = 0
        self._told: list[str] = []

    def observe(self, vitals: Vitals) -> Verdict:
        """Add an iteration and judge the run."""
        self._succeeded = self._succeeded or vitals.success.mean > 0
        self._recent = [*self._recent, vitals][-WINDOW - 1 :]
        now = smoothed(self._recent[-SMOOTHED:])
        if self._best is None or self._progress(now).above(self._progress(self._best)):
            self._best = now
        if now.held_out.above(self._best_held_out):
            self._best_held_out = now.held_out
        if self._base is None or self._gained(now, self._base, self._best_held_out):
            self._base = now.completed(self._base)
        else:  # what is measured now and then may not have been known then
            self._base = self._base.completed(now)
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

    def _gained(self, now: Vitals, base: Vitals, best_held_out: Estimate) -> bool:
        """Whether success rose, and not on training tasks alone."""
        if now.held_out.below(best_held_out):
            return False
        return self._progress(now).above(self._progress(base), RISE)

    def _progress(self, vitals: Vitals) -> Estimate:
        """What must not fall."""
        return vitals.success if self._succeeded else vitals.reward

    def _troubles(self, now: Vitals) -> dict[Kind, dict[str, int]]:
        """The weights of all reasons for trouble, by their words, for each kind."""
        assert self._best is not None and self._base is not None
        found: dict[Kind, dict[str, int]] = {}
        if (spikes := self.spikes()) >= SPIKES:
            text = f"{spikes} spikes of the gradient norm in the last {SPIKE_MEMORY} iterations"
            found["stability"] = {text: WEAK}
        if (leaps := self.leaps()) >= LEAPS:
            text = f"{leaps} of the last {SPIKE_MEMORY} updates moved the policy more than "
            text += f"{LEAP:g} times as far as usual"
            found.setdefault("stability", {})[text] = ENOUGH
        top, level = self._progress(self._best), self._progress(now)
        name = "success" if self._succeeded else "return"
        fallen = _fall(name, top, level, FALLS)
        fallen |= _fall("held-out success", self._best_held_out, now.held_out, HELD_OUT_FALLS)
        if fallen:
            found["progress"] = fallen
        worse = level.below(top) or now.held_out.below(self._best_held_out)
        if _paid_more(now.bonus, self._base.bonus):
            text = f"bonuses {self._base.bonus.mean:.3g} → {now.bonus.mean:.3g}"
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

    def leaps(self) -> int:
        """The number of leaps in the last iterations."""
        steps = [vitals.numbers.get("approximate_kl", math.nan) for vitals in self._recent]
        ends = range(max(len(steps) - SPIKE_MEMORY, 0), len(steps))
        return sum(is_leap(steps[end], steps[:end]) for end in ends)

    def state_dict(self) -> dict[str, Any]:
        """Everything that was observed, in plain types."""
        return {
            "recent": [vitals.to_state() for vitals in self._recent],
            "best": None if self._best is None else self._best.to_state(),
            "base": None if self._base is None else self._base.to_state(),
            "best_held_out": list(self._best_held_out),
            "succeeded": self._succeeded,
            "since": dict(self._since),
            "in_a_row": self._in_a_row,
            "calm": self._calm,
            "told": list(self._told),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        best, base = state["best"], state["base"]
        self._recent = [Vitals.from_state(vitals) for vitals in state["recent"]]
        self._best = None if best is None else Vitals.from_state(best)
        self._base = None if base is None else Vitals.from_state(base)
        self._best_held_out = Estimate(*state["best_held_out"])
        self._succeeded = state["succeeded"]
        self._since = dict(state["since"])
        self._in_a_row, self._calm = state["in_a_row"], state["calm"]
        self._told = list(state["told"])


def _fall(name: str, before: Estimate, now: Estimate, falls: tuple[float, ...]) -> dict[str, int]:
    """The weight of a fall as evidence, by what it is in words; empty without one."""
    noise = now.noise(before)
    limits = [max(n * noise, least) for n, least in zip(falls, LEAST_FALLS, strict=True)]
    weight = sum(before.mean - now.mean > limit for limit in limits)
    return {f"{name} {before.mean:.3g} → {now.mean:.3g}": weight} if weight else {}


def _paid_more(now: Estimate, before: Estimate) -> bool:
    """Whether bonuses rose by a quarter, and by more than chance."""
    rise = now.mean - before.mean
    return now.mean > 0 and rise > max(BONUS_ERRORS * now.noise(before), 0.25 * abs(before.mean))


def is_leap(step: float, earlier: Sequence[float]) -> bool:
    """Whether an update moved the policy much further than those before it usually did.

    Args:
        step: KL divergence of the policy from that of before the update, in nats.
        earlier: Those of earlier updates; those that are NaN do not count.
    """
    known = [each for each in earlier if not math.isnan(each)]
    return len(known) >= LEAST_WINDOW and step > max(LEAP * median(known), LEAST_LEAP)


def _differ(before: float, now: float, groups: int) -> bool:
    """Whether two shares of about as many groups differ by more than chance."""
    middle = (before + now) / 2
    error = math.sqrt(2 * middle * (1 - middle) / max(groups, 1))
    return now - before > SHARE_ERRORS * error
