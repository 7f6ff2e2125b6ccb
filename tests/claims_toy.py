"""The toy task with claims about its state, scripted runs of it, and a judge."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests import runs, toy
from vagentrl.callbacks import WorldModelReward
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.cli.trainer import VagentCLI
from vagentrl.engines import ScriptedEngine
from vagentrl.engines.base import GenerationRequest
from vagentrl.engines.scripted import Line
from vagentrl.errors import JudgeError
from vagentrl.formats import Grounding, NoThink, ReplyFormat, WorldModeling
from vagentrl.types import Observation, State

Script = Sequence[Line] | Callable[[GenerationRequest], Line]


class ClaimsCountdown(toy.Countdown):
    """A countdown from 3 whose reply format asks for claims about the number left.

    Args:
        format: The claims to ask for: ``both`` kinds, only the ``observation``, or ``none``.
        hides_state: Whether `state` returns None.
        **settings: Settings of `toy.Countdown`.
    """

    def __init__(self, format: str = "both", hides_state: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        formats: dict[str, ReplyFormat] = {
            "both": WorldModeling(), "observation": Grounding(), "none": NoThink(),
        }  # fmt: skip
        self.format, self.hides_state = formats[format], hides_state

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        return super().reset(2, transition_seed)

    def state(self) -> State | None:
        if self.hides_state:
            return None
        return State(f"{self.left} are left", f'{{"left":{self.left}}}', "x" * self.left)

    def rubric(self) -> str:
        return "the number counts"


def claim_reply(now: object, then: object, action: str = "go") -> str:
    """Return a reply with an observation and a prediction."""
    return (
        f"<think><observation>{now} are left</observation>"
        f"<prediction>{then} are left</prediction></think><answer>{action}</answer>"
    )


def by_turn(line: Callable[[int, int], Line]) -> Script:
    """Return a script whose lines are a function of the session and of the turn's number."""
    turns = Counter[int]()

    def script(request: GenerationRequest) -> Line:
        turns[request.session] += 1
        return line(request.session, turns[request.session] - 1)

    return script


HONEST = (claim_reply(3, 2), claim_reply(2, 1), claim_reply(1, 0))
QUICK = (
    "--data.env=tests.claims_toy.ClaimsCountdown", "--trainer.limit_val_batches=0",
    "--data.sampling.max_tokens=200", "--trainer.max_epochs=1", "--data.env.init_args.turn_limit=3",
    "--data.val_sampling={temperature: 0.5, max_tokens: 200}",
)  # fmt: skip


class ExactJudge(Judge):
    """Compares claims with the truth literally, and records them.

    Args:
        fails_on: The judge fails at claims that contain this text; None for no failures.
    """

    def __init__(self, fails_on: str | None = None) -> None:
        self.fails_on = fails_on
        self.asked: list[Claim] = []

    async def judge(self, claim: Claim) -> Verdict:
        self.asked.append(claim)
        if self.fails_on is not None and self.fails_on in claim.text:
            raise JudgeError(f"no verdict on {claim.text!r}")
        return Verdict(float(claim.text == claim.truth), "compared")

    def metrics(self) -> Mapping[str, float]:
        return {"asked": float(len(self.asked))}


def prepare(script: Script, reward: WorldModelReward, *overrides: str) -> VagentCLI:
    """Build a run of the toy task with a scripted engine, and with `reward` as first callback."""
    run = runs.prepare(*QUICK, *overrides)
    run.datamodule.engine = ScriptedEngine(script, toy.encode_reply)
    runs.callbacks(run).insert(0, reward)
    return run


def fit(script: Script, reward: WorldModelReward, *overrides: str) -> VagentCLI:
    run = prepare(script, reward, *overrides)
    run.trainer.fit(run.model, run.datamodule)
    return run
