"""Hints without a model: the environment's oracle, which now and then is wrong."""

from __future__ import annotations

import numpy as np

from vagentrl.environment import ActionEnvironment, Environment
from vagentrl.errors import ConfigError
from vagentrl.hints.base import Hint, HintModel, Situation
from vagentrl.hints.schedule import check_share

_STREAM = 7
"""Sets these draws apart from others that are made with the seeds of an episode."""


class ScriptedHintModel(HintModel):
    """Names an action: to exploit the oracle's, to explore one not tried yet.

    Its hints follow from the episode's seeds and the replies alone. It has nothing to say where the
    oracle does not.

    Args:
        right: Probability that a hint to exploit names the oracle's action; otherwise it names one
            of the others, all equally likely.
        actions: The actions to name; empty for those that the environment names.
        exploit_text: A hint to exploit, with ``{action}`` where the action's name belongs.
        explore_text: A hint to explore. Its action is one that the agent has not played where it
            saw what it sees now, or any if there is none left.
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
            return self._say(self.explore_text, self._untried(situation, rng))
        plan = situation.environment.oracle()
        if not plan:
            return None
        others = [name for name in self._names(situation.environment) if name != plan[0]]
        wrong = rng.random() >= self.right and others
        return self._say(self.exploit_text, rng.choice(others) if wrong else plan[0])

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

    def _say(self, text: str, action: str) -> Hint:
        return Hint(text.replace("{action}", action), action=str(action))

    def _names(self, environment: Environment) -> list[str]:
        if self.actions:
            return list(self.actions)
        if isinstance(environment, ActionEnvironment):
            return list(environment.action_names)
        raise ConfigError(
            f"ScriptedHintModel.actions is empty, but {type(environment).__name__} names no "
            "actions; give some (only an ActionEnvironment has names of its own)"
        )
