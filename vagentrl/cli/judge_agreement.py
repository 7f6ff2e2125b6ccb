"""``vagentrl judge-agreement``: how often does a judge agree with the exact one?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml

from vagentrl.claims.judge import Judge
from vagentrl.cli.check_env import exact_judge
from vagentrl.cli.parser import CONFIG_HELP, Parser
from vagentrl.cli.plugins import load_plugins
from vagentrl.cli.recipe_environments import worlds_of
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.evaluation.judge_agreement import compare
from vagentrl.evaluation.labelled_claims import LabelledClaim, Play, play_claims, read_claims
from vagentrl.modules.checks import check_least
from vagentrl.noise import silence_noise
from vagentrl.rollout import workers
from vagentrl.signatures import check_signatures
from vagentrl.types import Representation

USAGE = """vagentrl judge-agreement --judge CLASS (--env CLASS | --config CONFIG | --claims FILE)

  vagentrl judge-agreement --judge RelationF1 --env Sokoban
  vagentrl judge-agreement --judge '{class_path: RelationF1, init_args: {vague_credit: 0}}' \\
      --config sokoban_world_model --episodes 50
  vagentrl judge-agreement --judge RelationF1 --claims runs/mine/version_0/judgements.jsonl --json
"""
DESCRIPTION = """
Ask a judge about claims whose truth is known, and print how often it is wrong, with 95 % intervals,
how often it fails, and its time and cost. The claims are made from the states of an environment:
true ones, reworded ones, ones with one fact changed, those of another turn, and vague ones. Or they
are read from a file, labelled by you or by the exact judge.
"""


def run_judge_agreement(arguments: Sequence[str]) -> None:
    """``vagentrl judge-agreement``."""
    load_plugins(with_engines=False)
    silence_noise()
    parser = _parser()
    settings = parser.instantiate(parser.parse_args(list(arguments)))
    check_least("judge-agreement", 1, episodes=settings.episodes, turns=settings.turns)
    exact = settings.exact or exact_judge()
    if exact is None:
        raise ConfigError(
            "there is no exact judge; pip install 'vagentrl[judges]', or name one as --exact"
        )
    for judge in (settings.judge, exact):
        check_signatures(judge)
    agreement = compare(
        settings.judge,
        exact,
        _claims(settings),
        accept=settings.accept,
        at_once=settings.at_once,
        timeout_s=settings.timeout_s,
    )
    if settings.json:
        told = {"judge": settings.judge.identity(), "exact": exact.identity()}
        print(json.dumps(told | agreement.record(), ensure_ascii=False, indent=2))
    else:
        print(agreement)


def _parser() -> Parser:
    parser = Parser(prog="vagentrl judge-agreement", usage=USAGE, description=DESCRIPTION)
    parser.add_argument(
        "--judge", type=Judge, required=True, help="the judge to measure: a class with its settings"
    )
    parser.add_argument(
        "--exact", type=Judge | None, default=None,
        help="the judge that knows; null: ExactState",
    )  # fmt: skip
    parser.add_argument(
        "--env", type=Callable[[], Environment] | None, default=None, help="makes the states"
    )
    parser.add_argument("-c", "--config", type=str | None, default=None, help=CONFIG_HELP)
    parser.add_argument(
        "--claims", type=str | None, default=None,
        help="a file of claims, one JSON object in each line, such as a run's judgements.jsonl",
    )  # fmt: skip
    parser.add_argument("--episodes", type=int, default=20, help="episodes to play")
    parser.add_argument("--turns", type=int, default=2, help="turns of each to make claims about")
    parser.add_argument(
        "--representations", type=list[Representation], default=list(get_args(Representation)),
        help="representations to write claims in",
    )  # fmt: skip
    parser.add_argument("--play", type=Play, default="random", help="whose actions are played")
    parser.add_argument("--seed", type=int, default=0, help="of the actions and the claims")
    parser.add_argument(
        "--accept", type=float, default=1.0, help="score from which a claim counts as right"
    )
    parser.add_argument("--at_once", type=int, default=16, help="claims that are judged at once")
    parser.add_argument("--timeout_s", type=float, default=60.0, help="seconds for each claim")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _claims(settings: Any) -> list[LabelledClaim]:
    if sum(each is not None for each in (settings.env, settings.config, settings.claims)) != 1:
        raise ConfigError("give one of --env, --config and --claims")
    if settings.claims is not None:
        return read_claims(settings.claims)
    claims: list[LabelledClaim] = []
    for name, make in _worlds(settings):
        environment = workers.make(make, name)
        try:
            claims += play_claims(
                environment,
                episodes=settings.episodes,
                turns=settings.turns,
                representations=settings.representations,
                play=settings.play,
                seed=settings.seed,
            )
        finally:
            environment.close()
    return claims


def _worlds(settings: Any) -> list[tuple[str, Callable[[], Environment]]]:
    if settings.env is not None:
        return [("env", settings.env)]
    path = Path(settings.config)
    return list(worlds_of(yaml.safe_load(path.read_text(encoding="utf-8")), path.stem))
