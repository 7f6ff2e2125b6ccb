"""Customer support with dual control: the agent has the records, the customer has the telephone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import FreeThink, ReplyFormat
from vagentrl.types import Observation, Reply, State, StepResult
from vagentrl_envs.support.calls import SAY, CallError, read_call
from vagentrl_envs.support.describing import describe
from vagentrl_envs.support.drawing import draw_task, identity
from vagentrl_envs.support.families import FAMILIES
from vagentrl_envs.support.oracle import Expert
from vagentrl_envs.support.phone import World
from vagentrl_envs.support.policy import ATTEMPTS, untimely, violation
from vagentrl_envs.support.prompting import system_prompt, tools_for
from vagentrl_envs.support.random_play import random_action
from vagentrl_envs.support.scripted_user import ScriptedUser
from vagentrl_envs.support.talk import Talk, User
from vagentrl_envs.support.tasks import Family, Task
from vagentrl_envs.support.tools import Close, Tool, ToolError, Transfer, Verify, build
from vagentrl_envs.text_actions import readable

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_PLAN = 40
"""Actions after which an expert's plan is given up; the longest solution has about 20."""


@dataclass(frozen=True)
class Case:
    """The state of an episode.

    Attributes:
        world: Both databases and the telephone.
        talk: The conversation.
        turns: Replies so far.
        end: Why the episode is over; empty while it goes on.
        success: Whether it was solved.
    """

    world: World
    talk: Talk
    turns: int = 0
    end: str = ""
    success: bool = False


@dataclass(frozen=True)
class Advance:
    """What one reply did.

    Attributes:
        case: The state afterwards.
        text: What the agent sees.
        metrics: What the reply counts as.
    """

    case: Case
    text: str
    metrics: dict[str, float] = field(default_factory=dict)


class CustomerSupport(Environment):
    """Solve a customer's case for a telephone company, under its written policy.

    In each turn the agent calls one tool or says one thing to the customer, who alone can operate
    the telephone. The case is solved if the agent ends it when records and telephone are as the
    task's solution leaves them, and the customer was told what matters. A write that the policy
    forbids, and a customer that loses patience, end it without success. The domain follows the
    idea of τ²-bench (Barres et al. 2025); its rules, records and texts are our own.

    Args:
        families: Kinds of cases; None for all: ``device``, ``data``, ``plan``, ``refund``,
            ``suspended``, ``transfer``.
        faults: Fewest and most faults of the cases about faults, up to 4.
        user: Plays the customer; None for ``ScriptedUser``.
        terse: Use as few words as possible in the system prompt and in what the customer and the
            expert say, for tiny models.
        turn_limit: Turns after which an episode is truncated.
        format: The format of replies; its ``action_separator`` must be null.
        success_reward: Earned by a solved case.
        turn_cost: Subtracted in each turn.
        error_penalty: Subtracted for an action that cannot be read or carried out.
        format_penalty: Subtracted for a malformed reply.
    """

    def __init__(
        self,
        families: Sequence[Family] | None = None,
        faults: tuple[int, int] = (1, 4),
        user: User | None = None,
        terse: bool = False,
        turn_limit: int = 30,
        format: ReplyFormat | None = None,
        success_reward: float = 1.0,
        turn_cost: float = 0.0,
        error_penalty: float = 0.0,
        format_penalty: float = 0.1,
    ) -> None:
        super().__init__(format if format is not None else FreeThink(action_separator=None))
        self.families: tuple[Family, ...] = tuple(FAMILIES if families is None else families)
        self.faults = faults
        self.user = ScriptedUser(terse) if user is None else user
        self.terse = terse
        self.turn_limit = turn_limit
        self.success_reward = success_reward
        self.turn_cost = turn_cost
        self.error_penalty = error_penalty
        self.format_penalty = format_penalty
        self._check()
        self.tools = tools_for(self.families)
        self._task: Task
        self._case: Case
        self._over = True

    # -------------------------------------------------------------------------------- the episode

    @property
    def task(self) -> Task:
        """The task of this episode."""
        return self._task

    @property
    def case(self) -> Case:
        """The state of this episode."""
        return self._case

    @property
    def replays(self) -> bool:
        return self.user.replays

    @property
    def waits_s(self) -> float:
        return self.user.waits_s

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        return self.start(draw_task(seed, self.families, self.faults, self.terse))

    def start(self, task: Task) -> Observation:
        """Start an episode with a given task."""
        self._task = task
        self._case = Case(task.start, Talk().with_line("customer", task.opening))
        self._over = False
        return Observation(f"Customer: {task.opening}")

    def step(self, reply: Reply) -> StepResult:
        if self._over:
            raise EnvError("CustomerSupport got a reply, but no episode is running; call reset")
        malformed = reply.problem is not None
        if malformed:
            advance = Advance(self._case, f"Error: {reply.problem}")
        else:
            advance = self._play(self._case, reply.actions[0], self.user)
        case = replace(advance.case, turns=advance.case.turns + 1)
        self._case = case
        out_of_turns = case.turns >= self.turn_limit
        self._over = bool(case.end) or out_of_turns
        wrong = advance.metrics.get("tool_errors", 0.0)
        reward = self.success_reward * case.success - self.turn_cost
        reward -= self.format_penalty * malformed + self.error_penalty * wrong
        counted = ("tool_errors", "wrong_writes", "user_actions", "messages", "hung_up")
        return StepResult(
            Observation(advance.text),
            reward,
            terminated=bool(case.end),
            truncated=out_of_turns and not case.end,
            metrics={
                "success": float(case.success),
                "format_valid": float(not malformed),
                **{name: advance.metrics.get(name, 0.0) for name in counted},
            },
        )

    def _play(self, case: Case, action: str, user: User) -> Advance:
        """Play one action; it changes nothing but what it returns."""
        try:
            call = read_call(action)
            if call.name == SAY:
                if set(call.arguments) != {"text"}:
                    raise CallError("write say[...] with what the customer should hear")
                return self._say(case, call.arguments["text"], user)
            return self._call(case, build(call, self.tools))
        except (CallError, ToolError) as error:
            return Advance(case, f"Error: {error}", {"tool_errors": 1.0})

    def _say(self, case: Case, message: str, user: User) -> Advance:
        talk = case.talk.with_line("agent", message)
        turn = user.answer(self._task, case.world, talk, message)
        text = readable(turn.text)
        case = replace(
            case,
            world=turn.world,
            talk=turn.talk.with_line("customer", text),
            end="hung up" if turn.hung_up else "",
        )
        metrics = {
            "messages": 1.0,
            "user_actions": float(turn.actions),
            "hung_up": float(turn.hung_up),
        }
        return Advance(case, f"Customer: {text}", metrics)

    def _call(self, case: Case, tool: Tool) -> Advance:
        """Carry out a tool call.

        Raises:
            ToolError: When it cannot be carried out.
        """
        world, talk = case.world, case.talk
        if rule := violation(tool, world, talk):
            text = f"Stopped: {rule}."
            return Advance(replace(case, end="forbidden"), text, {"wrong_writes": 1.0})
        if not tool.open_to_all and (not talk.verified or tool.account(world) != talk.verified):
            raise ToolError("first verify the customer whose records these are")
        if isinstance(tool, Transfer) and (reason := untimely(tool, talk)):
            raise ToolError(reason)
        if isinstance(tool, Verify):
            return self._verify(case, tool)
        result = tool.run(world)
        talk = talk.with_seen(tool.name).with_line("tool", f"{tool.call}: {result.text}")
        case = replace(case, world=result.world, talk=talk)
        if isinstance(tool, Close | Transfer):
            case = replace(case, end="ended", success=self._is_solved(case))
        return Advance(case, f"Tool: {result.text}")

    def _verify(self, case: Case, tool: Verify) -> Advance:
        talk = case.talk
        if talk.attempts >= ATTEMPTS:
            raise ToolError("no attempts are left")
        try:
            text = tool.run(case.world).text
        except ToolError as error:
            case = replace(case, talk=replace(talk, attempts=talk.attempts + 1))
            return Advance(case, f"Error: {error}", {"tool_errors": 1.0})
        talk = replace(talk, verified=tool.customer).with_seen(tool.name)
        talk = talk.with_line("tool", f"{tool.call}: {text}")
        return Advance(replace(case, talk=talk), f"Tool: {text}")

    def _is_solved(self, case: Case) -> bool:
        return case.world == self._task.goal and self._task.inform <= case.talk.told

    # ------------------------------------------------------------------------ what is known of it

    def system_prompt(self) -> str:
        return system_prompt(self.families, self.format, self.terse)

    def initial_state(self, seed: int) -> Hashable:
        return identity(draw_task(seed, self.families, self.faults, self.terse))

    def state(self) -> State:
        case = self._case
        return describe(case.world, bool(case.talk.verified), case.turns)

    def rubric(self) -> str:
        return (
            "It says of the phone which of its switches are on and which are off, its network "
            "mode, whether APN and SIM card are in order, whether it must be restarted, where it "
            "is and what the screen shows; and of the line its plan, whether it is active, its "
            "roaming, its data, whether it is registered and until when it is bound; and whether "
            "the caller is verified, and the number of replies so far. All of it is right. The "
            "wording does not matter."
        )

    def oracle(self) -> tuple[str, ...] | None:
        """The rest of a solution; None if there is none left, or a chat model is the customer."""
        if not isinstance(self.user, ScriptedUser):
            return None
        expert, case, plan = Expert(self._task, self.terse), self._case, []
        while not case.end and len(plan) < LONGEST_PLAN:
            plan.append(expert.next_action(case.world, case.talk))
            case = self._play(case, plan[-1], self.user).case
        return tuple(plan) if case.success else None

    def random_actions(self, rng: Random) -> tuple[str, ...]:
        return (random_action(rng, self._case.world, tuple(self.tools.values())),)

    def frame(self) -> Image:
        from vagentrl_envs.support.picture import draw_dialogue

        return draw_dialogue(self._case.talk.history, self._case.world)

    def _check(self) -> None:
        """Raise on settings that cannot work."""
        unknown = [name for name in self.families if name not in FAMILIES]
        if unknown or not self.families:
            raise ConfigError(
                f"families is {list(self.families)}; give some of {', '.join(FAMILIES)}"
            )
        low, high = self.faults
        if not 1 <= low <= high <= 4:
            raise ConfigError(f"faults is {self.faults}; give two numbers from 1 to 4 in order")
        if self.turn_limit < 1:
            raise ConfigError(f"turn_limit is {self.turn_limit}; give at least 1")
        for name in ("turn_cost", "error_penalty", "format_penalty"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it is subtracted: give 0 or more"
                )
        if self.format.action_separator is not None:
            raise ConfigError(
                f"the format's action_separator is {self.format.action_separator!r}, which would "
                "cut the arguments of a call; set it to null, so that an answer is one action"
            )
