"""Hints without a model, from the environment's oracle, with errors at a given rate."""

from __future__ import annotations

import numpy as np

from vagentrl.environment import ActionEnvironment, Environment
from vagentrl.errors import ConfigError
from vagentrl.hints.base import Hint, HintModel, Situation
from vagentrl.hints.schedule import check_share

_STREAM = 7
"""Makes the random stream of this module differ from others that use the episode's seeds."""


class ScriptedHintModel(HintModel):
    """Suggests the oracle's action to exploit, and an untried action to explore.

    The hints depend only on the episode's seeds and replies. There is no hint to exploit if the
    oracle has no plan.

    Args:
        right: Probability that a hint to exploit suggests the oracle's action; otherwise it
            suggests one of the other actions with equal probability.
        actions: The actions to suggest; empty for the environment's `action_names`.
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
        others = [name for name in self._names(situation.environment) if name != plan[0]]
        wrong = rng.random() >= self.right and others
        return self._hint(self.exploit_text, rng.choice(others) if wrong else plan[0])

    def _untried(self, situation: Situation, rng: np.random.Generator) -> str:
        now = situation.observation
        tried = {
            action.casefold()
            for exchange in situation.past
            if (exchange.observation.text, exchange.observation.images) == (now.text, now.images)
            for action in exchange.reply.actions
        }
        names = self._names(situation.environment)
        return rng.choice([name for name in names if name.casefold() not in tried] or names)

    def _hint(self, text: str, action: str) -> Hint:
        return Hint(text.replace("{action}", action), action=str(action))

    def _names(self, environment: Environment) -> list[str]:
        if self.actions:
            return list(self.actions)
        if isinstance(environment, ActionEnvironment):
            return list(environment.action_names)
        raise ConfigError(
            f"ScriptedHintModel.actions is empty, but {type(environment).__name__} has no "
            "action_names, because it is not an ActionEnvironment; give actions"
        )
