"""An interaction as an environment: tasks to talk about, and someone who answers the agent."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Hashable, Sequence
from enum import Enum
from random import Random
from typing import Any, Literal, TypeVar

from vagentrl.environment import Environment, Split, index_of, split_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import PlainText, ReplyFormat
from vagentrl.interactions import session as sessions
from vagentrl.interactions.answers import Answer
from vagentrl.interactions.base import BaseInteraction
from vagentrl.interactions.prompt import TaskPrompt, read_prompt
from vagentrl.interactions.registry import Interactions
from vagentrl.interactions.session import FINALIZE_S, Session
from vagentrl.interactions.tasks import Task, Tasks
from vagentrl.interactions.verl_shim import install_verl_shim
from vagentrl.types import Example, Observation, Reply, StepResult

T = TypeVar("T")

# A worker process unpickles an interaction that was given as an object, and with it the user's
# module, before it makes an environment; importing this module is the first thing it does.
install_verl_shim()


class Lifecycle(Enum):
    """What a conversation waits for: its start, the agent, the interaction, or nothing more."""

    PENDING = "pending"
    GENERATING = "generating"
    INTERACTING = "interacting"
    COMPLETED = "completed"


class InteractionEnvironment(Environment):
    """Plays tasks with an interaction in the user's seat.

    Every reply is passed to the interaction as text, whatever the reply format; the interaction
    answers, scores the turn and says when the conversation is over. It is finalized however the
    episode ends.

    Args:
        tasks: The tasks; the ``index``-th seed of a split plays task ``index`` modulo their number.
        interactions: Who answers: the path of a YAML file in verl's form; or its content; or one
            interaction, as the dotted path of its class, as ``{class_name, name, config}``, or as
            an object. A row chooses by the ``name`` in its ``interaction_kwargs``.
        max_user_turns: Answers after which the next reply is the last one; null sets no limit.
        max_assistant_turns: Replies after which an episode is truncated; null sets no limit. With
            neither limit, an interaction that never ends the conversation is ended by the length of
            the model's context, and with a windowed context by nothing.
        final_turn: Whether the reply that reaches a limit is passed to the interaction for its
            score; ``skip``, as in verl, gives it no score.
        reward: What is learned from: the ``sum`` of the scores, each in its turn; the ``last``
            score, at the end; or ``external``, what `calculate_score` returns at the end. An
            episode without room for another reply in the model's context has no end in this sense.
        weights: Multiplies the score of each turn, first to last; the last weight holds for all
            later turns. None multiplies by 1.
        instances: One object of an interaction for all conversations of a process, ``shared`` and
            told apart by the instance_id, or a new one ``per_trajectory``.
        success_score: An episode is a success if the interaction ended it with at least this score.
        system: System prompt of tasks without a system message; empty leaves it to the model's chat
            template.
        replays: Whether the same replies to a task always get the same answers. A run with
            `data.turns` can then be resumed exactly, and continuations can be played. None asks
            the interactions' classes for their ``replays``.
        patience_s: Seconds that each of the interaction's methods may take; `data.timeout_s` does
            not count them.
        format: The format of replies; by default plain text without instructions.
    """

    def __init__(
        self,
        tasks: Tasks,
        interactions: str | dict[str, Any] | BaseInteraction,
        max_user_turns: int | None = None,
        max_assistant_turns: int | None = 16,
        final_turn: Literal["score", "skip"] = "score",
        reward: Literal["sum", "last", "external"] = "sum",
        weights: Sequence[float] | None = None,
        instances: Literal["shared", "per_trajectory"] = "shared",
        success_score: float = 1.0,
        system: str = "",
        replays: bool | None = None,
        patience_s: float = 60.0,
        format: ReplyFormat | None = None,
    ) -> None:
        super().__init__(PlainText() if format is None else format)
        for name, limit in (("user", max_user_turns), ("assistant", max_assistant_turns)):
            if limit is not None and limit < 1:
                raise ConfigError(f"max_{name}_turns is {limit}; give 1 or more, or null")
        if weights is not None and not (weights and all(map(math.isfinite, weights))):
            raise ConfigError(f"weights is {weights}; give a number for each turn, or null")
        if not patience_s > 0:
            raise ConfigError(f"patience_s is {patience_s}; give more than 0 seconds")
        self.tasks = tasks
        self.interactions = Interactions(interactions, shared=instances == "shared")
        self.max_user_turns = max_user_turns
        self.max_assistant_turns = max_assistant_turns
        self.final_turn = final_turn
        self.reward = reward
        self.weights = tuple(weights or (1.0,))
        self.success_score = success_score
        self.system = system
        self.patience_s = patience_s
        self._replays = self.interactions.replays if replays is None else replays
        self._prompt = TaskPrompt("", (), Observation(""))
        self._instructions = ""
        self._session: Session | None = None
        self._lifecycle = Lifecycle.COMPLETED

    @property
    def lifecycle(self) -> Lifecycle:
        """What the current conversation waits for."""
        return self._lifecycle

    @property
    def replays(self) -> bool:
        return self._replays

    @property
    def waits_s(self) -> float:
        return 2 * self.patience_s + FINALIZE_S  # the last step answers, scores and finalizes

    @property
    def prompt_varies(self) -> bool:
        return True

    def start_count(self, split: Split) -> int | None:
        return self.tasks.count(split)

    def initial_state(self, seed: int) -> Hashable | None:
        return self._task(seed).content

    def system_prompt(self) -> str:
        told = self._prompt.system or self.system
        instructions = self.format.instructions(actions_per_turn=1)
        return "\n\n".join(filter(None, (told, self._instructions, instructions)))

    def oracle(self) -> tuple[str, ...] | None:
        """The interaction's `best_reply` to the row, if it knows one."""
        if self._session is None:
            return ()
        reply = self._session.best_reply()
        return None if reply is None else (reply,)

    def random_actions(self, rng: Random) -> tuple[str, ...] | None:
        """The interaction's `random_reply` to the row, if it can draw one."""
        reply = None if self._session is None else self._session.random_reply(rng)
        return None if reply is None else (reply,)

    def examples(self) -> tuple[Example, ...]:
        return self._prompt.examples

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.close()
        task = self._task(seed)
        self._prompt = read_prompt(task)
        interaction = self.interactions.of_row(task.interaction, task.number)
        self._messages = [
            {"role": message["role"], "content": message["content"]} for message in task.messages
        ]
        self._user_turns = self._assistant_turns = 0
        self._score, self._score_turn = 0.0, 0
        self._lifecycle = Lifecycle.PENDING
        self._session = Session(interaction, task.interaction, self.patience_s)
        self._instructions = self._session.agent_instructions()
        self._run(self._session, self._session.start())
        self._lifecycle = Lifecycle.GENERATING
        return self._prompt.observation

    def step(self, reply: Reply) -> StepResult:
        session = self._session
        if session is None:
            raise EnvError("InteractionEnvironment got a reply, but no episode runs; call reset")
        self._lifecycle = Lifecycle.INTERACTING
        limited = self._at_limit()
        self._messages.append({"role": "assistant", "content": reply.text})
        asked = None if limited and self.final_turn == "skip" else self._messages
        turn = session.take_turn(asked, last=limited, scored=self.reward == "external")
        answer, score = self._run(session, turn)
        if answer is not None:
            self._messages.append({"role": "user", "content": answer.content})
            self._user_turns += 1
            self._score, self._score_turn = answer.score, self._assistant_turns
        if score is not None:
            self._score, self._score_turn = score, self._assistant_turns
        self._assistant_turns += 1
        terminated = answer is not None and answer.over
        over = terminated or limited
        self._lifecycle = Lifecycle.COMPLETED if over else Lifecycle.GENERATING
        self._session = None if over else session
        return StepResult(
            observation=Observation("") if answer is None else answer.observation,
            reward=self._reward(answer, over),
            terminated=terminated,
            truncated=over and not terminated,
            metrics=self._metrics(answer, reply, terminated),
        )

    def close(self) -> None:
        if self._session is not None:
            sessions.finalize(self._session)
        self._session, self._lifecycle = None, Lifecycle.COMPLETED

    def _task(self, seed: int) -> Task:
        split = split_of(seed)
        count = self.tasks.count(split)
        if count == 0:
            raise EnvError(f"the tasks have none for {split}; give more rows, or another division")
        return self.tasks.task(split, index_of(seed) % count)

    def _at_limit(self) -> bool:
        """Whether the reply that is to be answered now is the last one, as verl counts."""
        replies = self.max_assistant_turns
        answers = self.max_user_turns
        return (replies is not None and self._assistant_turns + 1 >= replies) or (
            answers is not None and self._user_turns >= answers
        )

    def _run(self, session: Session, work: Coroutine[Any, Any, T]) -> T:
        try:
            return sessions.run(session, work, self.waits_s)
        except BaseException:
            self._session, self._lifecycle = None, Lifecycle.COMPLETED
            raise

    def _reward(self, answer: Answer | None, over: bool) -> float:
        if self.reward == "sum":
            return 0.0 if answer is None else self._weight(self._score_turn) * answer.score
        return self._weight(self._score_turn) * self._score if over else 0.0

    def _weight(self, turn: int) -> float:
        return self.weights[min(turn, len(self.weights) - 1)]

    def _metrics(self, answer: Answer | None, reply: Reply, terminated: bool) -> dict[str, float]:
        """The interaction's numbers, and this environment's, which nothing replaces."""
        scored = {} if answer is None else {**answer.metrics, "interaction_score": answer.score}
        return {
            **scored,
            "success": float(terminated and self._score >= self.success_score),
            "format_valid": float(reply.problem is None),
        }
