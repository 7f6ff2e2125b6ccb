"""Hints without a model, from the environment's oracle, with errors at a given rate."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import numpy as np

from vagentrl.environment import ActionEnvironment, Environment
from vagentrl.errors import ConfigError
from vagentrl.hints.base import Hint, HintModel, Situation
from vagentrl.schedules import check_share

_STREAM = 7
"""Makes the random stream of this module differ from others that use the episode's seeds."""
TRIES = 20
"""Random actions that are drawn to find one that is not among the excluded ones."""


class ScriptedHintModel(HintModel):
    """Suggests the oracle's action to exploit, and an untried action to explore.

    The hints depend only on the episode's seeds and replies. There is no hint to exploit if the
    oracle has no plan.

    Args:
        right: Probability that a hint to exploit suggests the oracle's action; otherwise it
            suggests one of the other actions with equal probability.
        actions: The actions to suggest; empty for the environment's `action_names`, or for its
            `random_actions` if it names none.
        exploit_text: Text of a hint to exploit, with ``{action}`` in place of the action.
        explore_text: Text of a hint to explore. It suggests an action that the agent has not
            played at the same observation in this episode, or any action if all were played.
    """

    def __init__(
        self,
        right: float = 0.7,
        actions: tuple[str, ...] = (),
        exploit_text: str = "Go {action}.",
        explore_text: str = "Try {action}.",
    ) -> None:
        check_share("ScriptedHintModel.right", right)
        for name, text in (("exploit_text", exploit_text), ("explore_text", explore_text)):
            if "{action}" not in text:
                raise ConfigError(
                    f"ScriptedHintModel.{name} is {text!r}; write {{action}} where the action's "
                    "name belongs"
                )
        self.right = right
        self.actions = actions
        self.exploit_text = exploit_text
        self.explore_text = explore_text

    def hint(self, situation: Situation) -> Hint | None:
        rng = np.random.default_rng((_STREAM, *situation.seeds, 1))
        if situation.kind == "explore":
            return self._hint(self.explore_text, self._untried(situation, rng))
        plan = situation.environment.oracle()
        if not plan:
            return None
        wrong = None
        if rng.random() >= self.right:
            wrong = self._other_than({plan[0].casefold()}, situation.environment, rng)
        return self._hint(self.exploit_text, plan[0] if wrong is None else wrong)

    def _untried(self, situation: Situation, rng: np.random.Generator) -> str:
        now = situation.observation
        tried = {
            action.casefold()
            for exchange in situation.past
            if (exchange.observation.text, exchange.observation.images) == (now.text, now.images)
            for action in exchange.reply.actions
        }
        environment = situation.environment
        untried = self._other_than(tried, environment, rng)
        action = untried if untried is not None else self._other_than((), environment, rng)
        assert action is not None, "nothing was excluded"
        return action

    def _other_than(
        self, excluded: Collection[str], environment: Environment, rng: np.random.Generator
    ) -> str | None:
        """Draw an action that is not among the excluded ones (in lower case); None if there is
        none."""
        names = self.actions
        if not names and isinstance(environment, ActionEnvironment):
            names = environment.action_names
        if names:
            others = [name for name in names if name.casefold() not in excluded]
            return str(rng.choice(others)) if others else None
        draws = Random(int(rng.integers(2**32)))
        for _ in range(TRIES):
            drawn = environment.random_actions(draws)
            if not drawn:
                raise ConfigError(
                    f"ScriptedHintModel.actions is empty, but {type(environment).__name__} has no "
                    "action_names and no random_actions; give actions"
                )
            if drawn[0].casefold() not in excluded:
                return drawn[0]
        return None

    def _hint(self, text: str, action: str) -> Hint:
        return Hint(text.replace("{action}", action), action=action)
