"""Plays policies in environments and compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from tqdm import tqdm

from vagentrl.environment import Environment, Split
from vagentrl.errors import ConfigError
from vagentrl.evaluation.ledger import Ledger, PlayedEpisode
from vagentrl.evaluation.players import Factory, Player, Start, player_of
from vagentrl.evaluation.recording import Recording
from vagentrl.modules.checks import check_least
from vagentrl.rollout.held_out import held_out_seeds
from vagentrl.rollout.workers import WorkerPool, check_factory
from vagentrl.types import Trajectory


def evaluate(
    policies: Mapping[str, str | Player],
    envs: Mapping[str, Callable[[], Environment]],
    output: str | Path,
    *,
    episodes: int = 256,
    samples: int = 1,
    split: Split = "test",
    progress: bool = True,
    store: int | None = None,
) -> list[PlayedEpisode]:
    """Play every policy in every environment, from the same initial states.

    Each episode is written to ``output/episodes.jsonl`` when it ends. A call with the same settings
    and the same folder goes on where an interrupted one ended, and plays failed episodes again.

    Args:
        policies: What plays, by name: a `Player`, or a policy as `vagentrl.load_policy` takes it.
        envs: What makes the environments, by name.
        output: The folder of the evaluation.
        episodes: Initial states of each environment.
        samples: Episodes from each of them.
        split: Which seeds are played. No training seed is among those of ``validation`` and
            ``test``.
        progress: Show a progress bar.
        store: Episodes of each policy in each environment whose trajectories are stored for
            ``vagentrl view``, the first ones; 0 for none. None: 64, or 0 without pyarrow.

    Returns:
        All episodes; the failed ones are those of this call.

    Raises:
        ConfigError: When there is nothing to play, or the folder holds something else.
        EngineDead: When a policy's engine can answer nothing any more.
    """
    if not policies or not envs:
        raise ConfigError("give at least one policy and one environment")
    check_least("evaluate", 1, episodes=episodes, samples=samples)
    check_least("evaluate", 0, store=store or 0)
    players = {name: player_of(policy) for name, policy in policies.items()}
    starts = {name: _starts(name, make, split, episodes, samples) for name, make in envs.items()}
    settings = _identities(players, starts) | {"samples": samples, "split": split}
    ledger, failed = Ledger(Path(output), settings), []
    recording = Recording(Path(output), split, starts, store)
    total = len(players) * sum(map(len, starts.values()))
    with tqdm(
        total=total, initial=len(ledger.episodes), unit="episode", disable=not progress
    ) as bar:

        def on_end(episode: PlayedEpisode, trajectory: Trajectory | None = None) -> None:
            # First the trajectory: after a kill in between, the episode is played and stored again.
            recording.add(players[episode.policy], episode, trajectory)
            ledger.add(episode)
            if episode.error is not None:
                failed.append(episode)
            bar.update()

        with closing(recording):
            for name, player in players.items():
                for environment, make in envs.items():
                    bar.set_description(f"{name}, {environment}")
                    missing = _missing(ledger, name, environment, starts[environment])
                    if missing:
                        player.play(name, environment, make, missing, on_end)
                player.close()
    return [*ledger.episodes.values(), *failed]


def _identities(
    players: Mapping[str, Player], starts: Mapping[str, Sequence[Start]]
) -> dict[str, object]:
    """What is played, by whom, as far as it decides the episodes."""
    return {
        "policies": {name: player.identity() for name, player in players.items()},
        "seeds": {name: [start.seed for start in each] for name, each in starts.items()},
    }


def _starts(name: str, factory: Factory, split: Split, episodes: int, samples: int) -> list[Start]:
    """The episodes of an environment; no two seeds start from the same state."""
    check_factory(factory, f"envs[{name!r}]")
    pool = WorkerPool(factory, name)
    try:
        seeds = held_out_seeds(pool, split, episodes)
    finally:
        pool.close()
    return [Start(seed, sample) for seed in dict.fromkeys(seeds) for sample in range(samples)]


def _missing(ledger: Ledger, policy: str, environment: str, starts: Sequence[Start]) -> list[Start]:
    return [
        start
        for start in starts
        if (policy, environment, start.seed, start.sample) not in ledger.episodes
    ]
