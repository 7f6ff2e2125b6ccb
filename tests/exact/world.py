"""A decision process small enough to enumerate: its episodes, and the batches that can be played.

The policy samples one of two tokens, A and B, so a reply is A or B, or, where a first B asks for a
second token, A, BA or BB. `LONG`, `SHORT` and `EVEN` each hold every episode from one initial
state. Turns have one or two tokens and episodes one to three turns; they terminate, reach the turn
limit (truncated), or are cut. Turns 1 and 2 of `LONG` show the same observation. In `EVEN` every
reply has two tokens.

All rewards are exact in float32, the type in which `collate` stores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement
from math import factorial, prod

import torch
from torch import Tensor

from vagentrl.types import Observation, Prompt, Reply, Stop, Trajectory, Turn

A, B = 1, 2
PROMPTS = {
    "start": (3, 4),
    "short start": (3, 7),
    "even start": (3, 6),
    "fork": (5,),
    "end": (6, 7),
}
VOCABULARY = 8

Prefix = tuple[int, ...]
Episodes = Sequence[Trajectory]


def _episode(stop: Stop, start: str, *turns: tuple[str, float]) -> Trajectory:
    seen = [start, *["fork"] * (len(turns) - 1)]
    return Trajectory(
        environment="exact",
        seed=0,
        group_id=0,
        turns=tuple(
            Turn(
                Observation(shown),
                Prompt(PROMPTS[shown]),
                tuple({"A": A, "B": B}[letter] for letter in reply),
                (0.0,) * len(reply),
                Reply(reply),
                reward,
                "stop",
            )
            for shown, (reply, reward) in zip(seen, turns, strict=True)
        ),
        stop=stop,
        final_observation=Observation("end"),
        end=None if stop == "terminated" else Prompt(PROMPTS["end"]),
    )


LONG = (
    _episode("terminated", "start", ("B", 1.0)),
    _episode("cut", "start", ("A", 0.5), ("A", 0.25)),
    _episode("terminated", "start", ("A", 0.5), ("BB", -1.0)),
    _episode("terminated", "start", ("A", 0.5), ("BA", 0.0), ("A", 2.0)),
    _episode("truncated", "start", ("A", 0.5), ("BA", 0.0), ("B", -0.5)),
)
SHORT = (
    _episode("truncated", "short start", ("A", 0.75)),
    _episode("terminated", "short start", ("BA", -0.25)),
    _episode("terminated", "short start", ("BB", 1.5)),
)
EVEN = (
    _episode("terminated", "even start", ("BA", 1.0)),
    _episode("terminated", "even start", ("BB", -1.0)),
    _episode("truncated", "even start", ("AB", 0.25)),
    _episode("terminated", "even start", ("AA", 0.5), ("AA", 2.0)),
    _episode("terminated", "even start", ("AA", 0.5), ("AB", 0.0)),
    _episode("truncated", "even start", ("AA", 0.5), ("BA", -0.5)),
    _episode("terminated", "even start", ("AA", 0.5), ("BB", 1.0)),
)


@dataclass(frozen=True)
class Path:
    """The sampled tokens of an episode, in order: all that a formula reads.

    Attributes:
        states: The state before each token, as a row of the models' tables.
        actions: Each token: 0 for A, 1 for B.
        turns: Number of the turn that each token belongs to.
        observations: The observation of that turn.
        rewards: Reward of each token. A turn's reward is on its last token.
        after: The state after the end, to bootstrap from; None when the episode terminated.
        continued: Mean return of the continuations from each turn; None where none were played.
    """

    states: tuple[int, ...]
    actions: tuple[int, ...]
    turns: tuple[int, ...]
    observations: tuple[str, ...]
    rewards: tuple[float, ...]
    after: int | None
    continued: tuple[float | None, ...] = ()

    def __len__(self) -> int:
        return len(self.states)


def to_path(trajectory: Trajectory) -> Path:
    """The sampled tokens of a trajectory."""
    read: Prefix = ()
    states, actions, turns, observations, rewards = [], [], [], [], []
    for number, turn in enumerate(trajectory.turns):
        read = turn.prompt.ids if turn.prompt.whole else read + turn.prompt.ids
        for token in turn.reply_ids:
            states.append(state_rows()[read])
            actions.append({A: 0, B: 1}[token])
            turns.append(number)
            observations.append(turn.observation.text)
            rewards.append(0.0)
            read += (token,)
        rewards[-1] = turn.reward
    after = None
    if trajectory.end is not None:
        end = trajectory.end
        after = state_rows()[end.ids if end.whole else read + end.ids]
    return Path(
        tuple(states),
        tuple(actions),
        tuple(turns),
        tuple(observations),
        tuple(rewards),
        after,
        tuple(turn.continued_value for turn in trajectory.turns),
    )


def continue_from(episodes: Episodes, every: int, values: Mapping[int, float]) -> Episodes:
    """The episodes with these values of the states before every n-th turn, as if played."""
    continued = []
    for episode in episodes:
        path = to_path(episode)
        turns = [
            replace(turn, continued_value=values[path.states[path.turns.index(number)]])
            if number and number % every == 0
            else turn
            for number, turn in enumerate(episode.turns)
        ]
        continued.append(replace(episode, turns=tuple(turns)))
    return continued


def to_paths(episodes: Episodes) -> list[Path]:
    """The sampled tokens of each trajectory."""
    return [to_path(episode) for episode in episodes]


@cache
def state_rows() -> Mapping[Prefix, int]:
    """Every state, which is all tokens read so far, and its row in the models' tables.

    Only states before a sampled token and after an end have a row. Row 0 is for all other prefixes.
    """
    states: dict[Prefix, None] = {}
    for trajectory in (*LONG, *SHORT, *EVEN):
        read: Prefix = ()
        for turn in trajectory.turns:
            read += turn.prompt.ids
            for token in turn.reply_ids:
                states[read] = None
                read += (token,)
        if trajectory.end is not None:
            states[read + trajectory.end.ids] = None
    return {state: row for row, state in enumerate(states, start=1)}


# ------------------------------------------------------------------------------------ probabilities


def probabilities(paths: Sequence[Path], logprobs: Tensor) -> Tensor:
    """The probability of each episode, differentiable in the policy's table of log-probs."""
    return torch.stack([logprobs[list(p.states), list(p.actions)].sum() for p in paths]).exp()


@dataclass(frozen=True)
class Batch:
    """A batch that can be played.

    Attributes:
        probability: Probability that it is played, in whatever order of the members.
        groups: For each group, which episode each member played, by its index.
    """

    probability: float
    groups: tuple[tuple[int, ...], ...]


def all_batches(chances: Sequence[Sequence[float]], members: int) -> list[Batch]:
    """Every batch with one group from each initial state.

    Args:
        chances: For each initial state, the probability of each of its episodes.
        members: Episodes in a group.
    """
    batches = [Batch(1.0, ())]
    for chance in chances:
        batches = [
            Batch(batch.probability * _multinomial(group, chance), (*batch.groups, group))
            for batch in batches
            for group in combinations_with_replacement(range(len(chance)), members)
        ]
    return batches


def _multinomial(group: Sequence[int], chance: Sequence[float]) -> float:
    orders = factorial(len(group)) / prod(factorial(group.count(index)) for index in set(group))
    return orders * prod(chance[index] for index in group)


def with_logprobs(trajectory: Trajectory, logprobs: Tensor) -> Trajectory:
    """The trajectory with the log-probs of the policy that sampled it."""
    path = to_path(trajectory)
    sampled = iter(logprobs[list(path.states), list(path.actions)].tolist())
    turns = [
        replace(turn, reply_logprobs=tuple(next(sampled) for _ in turn.reply_ids))
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=tuple(turns))
