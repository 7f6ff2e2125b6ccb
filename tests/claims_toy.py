"""A toy task whose agent says what it sees, runs of it with a script for a model, and judges."""

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


class Telling(toy.Countdown):
    """Counts down from 3, and wants to hear how many are left.

    Args:
        format: ``both`` claims, the ``observation`` or ``none``.
        mute: Whether it does not tell its state.
        **settings: Those of the countdown.
    """

    def __init__(self, format: str = "both", mute: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        formats: dict[str, ReplyFormat] = {
            "both": WorldModeling(), "observation": Grounding(), "none": NoThink(),
        }  # fmt: skip
        self.format, self.mute = formats[format], mute

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        return super().reset(2, transition_seed)

    def state(self) -> State | None:
        if self.mute:
            return None
        return State(f"{self.left} are left", f'{{"left":{self.left}}}', "x" * self.left)

    def rubric(self) -> str:
        return "the number counts"


def say(now: object, then: object, action: str = "go") -> str:
    """A reply with both claims."""
    return (
        f"<think><observation>{now} are left</observation>"
        f"<prediction>{then} are left</prediction></think><answer>{action}</answer>"
    )


def by_turn(line: Callable[[int, int], Line]) -> Script:
    """A script whose lines depend on the number of the episode and of the turn."""
    turns = Counter[int]()

    def script(request: GenerationRequest) -> Line:
        turns[request.session] += 1
        return line(request.session, turns[request.session] - 1)

    return script


HONEST = (say(3, 2), say(2, 1), say(1, 0))
QUICK = (
    "--data.env=tests.telling.Telling", "--trainer.limit_val_batches=0",
    "--data.sampling.max_tokens=200", "--trainer.max_epochs=1", "--data.env.init_args.turn_limit=3",
    "--data.val_sampling={temperature: 0.5, max_tokens: 200}",
)  # fmt: skip


class Exact(Judge):
    """Compares word by word, keeps what it was asked, and fails where it is told to."""

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
    """A run of the toy task in which a script replies; the callback comes first."""
    run = runs.prepare(*QUICK, *overrides)
    run.datamodule.engine = ScriptedEngine(script, toy.encode_reply)
    runs.callbacks(run).insert(0, reward)
    return run


def fit(script: Script, reward: WorldModelReward, *overrides: str) -> VagentCLI:
    run = prepare(script, reward, *overrides)
    run.trainer.fit(run.model, run.datamodule)
    return run
