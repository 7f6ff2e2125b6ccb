"""What a person gets wrong in a part of their own ends in one sentence that names the method."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests import runs
from tests.claims.claims import claim
from tests.losses.batches import train_batch
from tests.toy import Countdown
from vagentrl.advantages import AdvantageEstimator, CriticEstimator, EpisodeEstimator
from vagentrl.callbacks import AgentCallback
from vagentrl.claims.judge import Judge, Verdict
from vagentrl.cli.main import main
from vagentrl.contexts import Context
from vagentrl.engines.base import Engine, Generation, GenerationRequest, Sampling
from vagentrl.environment import ActionEnvironment, Outcome
from vagentrl.errors import VagentError
from vagentrl.filters import GroupFilter
from vagentrl.formats import NoThink, ReplyFormat
from vagentrl.losses import PolicyLoss
from vagentrl.modules.callback import CallbackHooks
from vagentrl.rollout import workers
from vagentrl.signatures import check_signatures
from vagentrl.types import Credit, Observation, Reply, Scores, State, StepResult

Mistake = Callable[[], Any]

ONES = torch.ones(2, 3)
"""``(B, T)`` of the batch below, in which every token is sampled, and so ``(N, S)`` too."""
BATCH = train_batch(-ONES, ONES)
SEEN = Observation("3 left")
PIXELS = np.zeros((28, 28, 3), np.uint8)
GO = Reply("<answer>go</answer>", ("go",))


def mine(base: type, **methods: Any) -> Any:
    """An instance of a class `Mine` that derives from `base`."""
    return type("Mine", (base,), methods)()


def lose(per_token: Callable[[Any, torch.Tensor, Any], Any]) -> Mistake:
    logprobs = (-ONES).requires_grad_()
    return lambda: mine(PolicyLoss, per_token=per_token)(logprobs, BATCH)


def estimate(base: type, answer: Any, **methods: Any) -> Mistake:
    """An estimator whose `credit` or `estimate` gives this answer."""
    method = "credit" if base is AdvantageEstimator else "estimate"
    if base is CriticEstimator:
        methods = {"__init__": lambda self: CriticEstimator.__init__(self, whiten=False)} | methods
    methods[method] = lambda self, *arguments: answer
    scores = Scores(-ONES, values=ONES)
    return lambda: mine(base, **methods)(BATCH.rollout, scores)


def judge(method: Callable[..., Any]) -> Mistake:
    return lambda: asyncio.run(mine(Judge, judge=method)(claim("the box is here")))


async def score_alone(self: Judge, asked: Any) -> Any:
    return "0.5"


def generate(method: Callable[..., Any]) -> Mistake:
    request = GenerationRequest(0, (1, 2), (), Sampling(), seed=0)
    others = {"prepare": lambda self, vocabulary: None, "update_weights": lambda self, p, v: None}
    return lambda: asyncio.run(mine(Engine, generate=method, **others)(request))


def sample(reply_ids: Any, logprobs: Any, finish: Any = "stop") -> Mistake:
    async def method(self: Engine, request: GenerationRequest) -> Generation:
        return Generation(reply_ids, logprobs, finish, policy_version=0)

    return generate(method)


async def text(self: Engine, request: GenerationRequest) -> Any:
    return "<answer>go</answer>"


def hooks(**methods: Any) -> CallbackHooks:
    callback = mine(AgentCallback, **methods)
    return CallbackHooks(SimpleNamespace(trainer=SimpleNamespace(callbacks=[callback])))  # pyright: ignore


def play(reply: Reply = GO, **methods: Any) -> Mistake:
    """A turn of the toy task with some methods replaced."""

    def turn() -> None:
        environment = mine(Countdown, **methods)
        workers.reset(environment, seed=0, transition_seed=0)
        workers.step(environment, reply)

    return turn


def stepped(*arguments: Any, **named: Any) -> Mistake:
    return play(step=lambda self, reply: StepResult(*arguments, **named))


def act(**methods: Any) -> Mistake:
    """A turn of a game of actions with some methods replaced."""
    methods = {
        "__init__": lambda self: ActionEnvironment.__init__(self, ["go"], NoThink()),
        "_start": lambda self, seed, transition_seed: None,
        "_act": lambda self, action: Outcome(1.0),
        "_observe": lambda self: SEEN,
        "system_prompt": lambda self: "Go.",
    } | methods

    def turn() -> None:
        environment = mine(ActionEnvironment, **methods)
        workers.traits(environment)
        environment.reset(0)
        environment.step(GO)

    return turn


MISTAKES: dict[str, tuple[Mistake, str]] = {
    # ------------------------------------------------------------------------ what learns
    "one advantage for a trajectory": (
        estimate(EpisodeEstimator, torch.ones(2)),
        r"Mine\.estimate returned <torch\.float32 \(2,\) on cpu> \(Tensor\); return a float tensor "
        r"of shape \(N, S\), here \(2, 3\), on cpu",
    ),
    "one return for a trajectory": (
        estimate(CriticEstimator, (ONES, torch.ones(2))),
        r"Mine\.estimate returned <torch\.float32 \(2,\) on cpu>",
    ),
    "whole numbers as advantages": (
        estimate(EpisodeEstimator, ONES.long()), r"Mine\.estimate returned <torch\.int64 \(2, 3\)"
    ),
    "advantages without returns": (
        estimate(CriticEstimator, ONES), r"Mine\.estimate returned <.*return two tensors \(N, S\)"
    ),
    "a credit that is a tensor": (
        estimate(AdvantageEstimator, ONES), r"Mine\.credit returned <.*return Credit\(advantages"
    ),
    "a credit of whole rows": (
        estimate(AdvantageEstimator, Credit(torch.ones(2))),
        r"Mine\.credit returned <torch\.float32 \(2,\) on cpu> .* shape \(B, T\), here \(2, 3\)",
    ),
    "a critic that gets no returns": (
        estimate(AdvantageEstimator, Credit(ONES), needs_critic=True),
        r"Mine\.credit returned no returns, but needs_critic is True",
    ),
    "advantages that are divided by 0": (
        estimate(EpisodeEstimator, ONES / 0), r"Mine returned inf in 6 of 6 places; advantages "
    ),
    "an estimator that does not call its base": (
        estimate(CriticEstimator, (ONES, ONES), __init__=lambda self: None),
        r"Mine\.__init__ does not call its base's; begin it with super\(\)\.__init__\(whiten=",
    ),
    "the mean loss": (
        lose(lambda self, logprobs, batch: -logprobs.mean()),
        r"Mine\.per_token returned <torch\.float32 \(\) on cpu>.* shape \(B, T\), here \(2, 3\)",
    ),
    "no loss": (lose(lambda self, logprobs, batch: None), r"Mine\.per_token returned None; return"),
    "a loss of what was": (
        lose(lambda self, logprobs, batch: -batch.scores.old_logprobs),
        r"Mine\.per_token returned a loss without a gradient; compute it from `logprobs`",
    ),
    "a loss that is not finite": (
        lose(lambda self, logprobs, batch: logprobs / 0),
        r"Mine\.per_token returned -inf in 6 of 6 places; it must be finite off the action mask",
    ),
    "the indices of the groups to keep": (
        lambda: mine(GroupFilter, keep=lambda self, spreads: [0])([0.1, 0.0]),
        r"Mine\.keep returned \[0\] \(list\); return a list with True or False for each of the 2",
    ),
    "a group too few": (
        lambda: mine(GroupFilter, keep=lambda self, spreads: [True])([0.1, 0.0]),
        r"Mine\.keep returned \[True\] \(list\); return a list with True or False for each of",
    ),
    "groups in a tuple": (
        lambda: mine(GroupFilter, keep=lambda self, spreads: (True, False))([0.1, 0.0]),
        r"Mine\.keep returned \(True, False\) \(tuple\); return a list",
    ),
    # ------------------------------------------------------------------------ callbacks
    "episodes that are not given back": (
        lambda: hooks(on_trajectories=lambda self, agent, episodes: None).on_trajectories([]),
        r"Mine\.on_trajectories returned None; return the list of trajectories",
    ),
    "an evaluation that is not given back": (
        lambda: hooks(on_evaluation=lambda self, agent, e, report: None).on_evaluation([], {}),
        r"Mine\.on_evaluation returned None; return the list of trajectories",
    ),
    "a batch that is not given back": (
        lambda: hooks(on_scores=lambda self, *_: None).on_scores(BATCH.rollout, BATCH.scores),
        r"Mine\.on_scores returned None; return the rollout, changed by dataclasses\.replace",
    ),
    "a term for the whole loss": (
        lambda: hooks(policy_loss_term=lambda self, *_: ONES.sum()).policy_loss_terms(BATCH, ONES),
        r"Mine\.policy_loss_term returned <torch\.float32 \(\) on cpu>.* shape \(B, T\)",
    ),
    "a report of words": (
        lambda: hooks(on_report=lambda self, agent, r: r.update(best="a")).on_report({}),
        r"Mine\.on_report left 'a' \(str\) in the report under 'best'; give a float",
    ),
    "a hook with too few arguments": (
        lambda: check_signatures(mine(AgentCallback, on_turn_end=lambda self, agent, turn: None)),
        r"Mine\.on_turn_end takes \(self, agent, turn\), but is called with \(self, agent, turn, "
        r"\*, training\)",
    ),
    # ------------------------------------------------------------------------ judges, engines
    "a judge that is not async": (
        judge(lambda self, claim: Verdict(1.0)),
        r"Mine\.judge returned Verdict\(.*write it as `async def judge`",
    ),
    "a score as text": (
        judge(score_alone), r"Mine\.judge returned '0\.5' \(str\); return Verdict"
    ),
    "a score in words": (
        lambda: Verdict("high"), r"a verdict's score is 'high' \(str\); a judge gives a number"  # pyright: ignore
    ),
    "an engine that is not async": (
        generate(lambda self, request: None),
        r"Mine\.generate returned None; write it as `async def generate`",
    ),
    "a reply as text": (
        generate(text),
        r"Mine\.generate returned '<answer>go</answer>' \(str\); return Generation\(reply_ids",
    ),
    "an empty reply": (
        sample((), ()), r"Mine\.generate returned a Generation of 0 tokens with 0 log-probs"
    ),
    "log-probs of another length": (
        sample((5, 6), (-0.1,)), r"a Generation of 2 tokens with 1 log-probs; give at least one"
    ),
    "probabilities": (
        sample((5,), (0.7,)), r"whose logprobs are \(0\.7,\) \(tuple\); give logarithms"
    ),
    "a reply as a tensor": (
        sample(torch.tensor([5]), (-0.1,)), r"whose reply_ids are <torch\.int64 \(1,\) on cpu>"
    ),
    "a reply that ended somehow": (
        sample((5,), (-0.1,), "eos"), r"whose finish is 'eos'; give 'stop' or 'length'"
    ),
    # ------------------------------------------------------------------------ contexts, formats
    "more of the past than is remembered": (
        lambda: mine(Context, memory=1, start=lambda self, turn: 0)(5),
        r"Mine\.start\(5\) returned 0 \(int\); return the index of a turn from 4 to 5, for its "
        "memory is 1",
    ),
    "a turn from the future": (
        lambda: mine(Context, start=lambda self, turn: turn + 1)(0),
        r"Mine\.start\(0\) returned 1 \(int\); return the index of a turn from 0 to 0",
    ),
    "a reply that is not parsed": (
        lambda: mine(ReplyFormat, parse=lambda self, text: None)("go"),
        r"Mine\.parse returned None; return a Reply",
    ),
    "actions in one string": (
        lambda: Reply("go", actions="go"),  # pyright: ignore
        r"a reply's actions are 'go' \(str\); give a tuple of strings",
    ),
    "a best action that is a string": (
        lambda: NoThink().write("Up"), r"a reply are 'Up' \(str\);.* oracle\(\) return one"
    ),
    # ------------------------------------------------------------------------ environments
    "a first observation as text": (
        play(reset=lambda self, seed, transition_seed: "3 left"),
        r"Mine\.reset returned '3 left' \(str\); return an Observation alone",
    ),
    "Gymnasium's reset": (
        play(reset=lambda self, seed, transition_seed: (SEEN, {})),
        r"Mine\.reset returned \(Observation\(.*\(tuple\); return an Observation alone",
    ),
    "Gymnasium's step": (
        play(step=lambda self, reply: (SEEN, 0.0, False, False, {})),
        r"Mine\.step returned \(Observation\(.*\(tuple\); return StepResult\(observation, reward",
    ),
    "a reward as text": (stepped(SEEN, "1"), r"Mine\.step .* whose reward is '1' \(str\); give a"),
    "no reward": (stepped(SEEN, None), r"Mine\.step .* whose reward is None; give a float"),
    "a reward as a tensor": (stepped(SEEN, ONES[0, 0]), r"Mine\.step .* reward is <torch\."),
    "an end in the reward's place": (stepped(SEEN, True), r"Mine\.step .* reward is True \(bool\)"),
    "an end in words": (
        stepped(SEEN, 1.0, terminated="no"), r"Mine\.step .* whose terminated is 'no' \(str\); give"
    ),
    "a metric in words": (
        stepped(SEEN, 1.0, metrics={"success": "yes"}),
        r"Mine\.step .* whose metric 'success' is 'yes' \(str\); give a float",
    ),
    "the next observation as text": (
        stepped("2 left", 1.0), r"Mine\.step .* whose observation is '2 left' \(str\)"
    ),
    "no system prompt": (
        play(system_prompt=lambda self: None), r"Mine\.system_prompt returned None; return a string"
    ),
    "a state as a dictionary": (
        play(Reply("", ("go",), observation_claim="3"), state=lambda self: {"left": 3}),
        r"Mine\.state returned \{'left': 3\} \(dict\); return State\(natural",
    ),
    "a structured state that is not text": (
        lambda: State("3 left", {"left": 3}, "xxx"),  # pyright: ignore
        r"State\.structured is \{'left': 3\} \(dict\); give a string",
    ),
    "an observation of pixels": (
        lambda: Observation("<image>", (PIXELS,)),  # pyright: ignore
        r"an observation's image is <uint8 \(28, 28, 3\)> \(ndarray\); give a PIL image, such as "
        r"PIL\.Image\.fromarray",
    ),
    "an image without its tuple": (
        lambda: Observation("<image>", Image.fromarray(PIXELS)),  # pyright: ignore
        r"an observation's images are .* \(Image\); give a tuple, which is \(image,\)",
    ),
    "a bare reward for an action": (
        act(_act=lambda self, action: 1.0),
        r"Mine\._act returned 1\.0 \(float\); return Outcome\(reward, done, success\)",
    ),
    "what is seen as text": (
        act(_observe=lambda self: "3 left"), r"Mine\._observe returned '3 left' \(str\)"
    ),
    "an action that takes no name": (
        act(_act=lambda self: Outcome(1.0)),
        r"Mine\._act takes \(self\), but is called with \(self, action\); write it as `def _act\(",
    ),
    "an environment that does not call its base": (
        act(__init__=lambda self: None),
        r"Mine\.__init__ does not call its base's; begin it with super\(\)\.__init__\(",
    ),
    "an environment that does not call its base in time": (
        lambda: workers.make(
            lambda: mine(Countdown, __init__=lambda self: self.format.instructions(1)), "train"
        ),
        r"'train' cannot be made: AttributeError: .*; begin its __init__ with super\(\)\.__init__",
    ),
    "the class of a format": (
        act(__init__=lambda self: ActionEnvironment.__init__(self, ["go"], NoThink)),  # pyright: ignore
        r"format is the class NoThink; give an instance",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_where_it_is_made(name: str):
    mistake, said = MISTAKES[name]
    with pytest.raises(VagentError, match=said):
        mistake()


@pytest.mark.parametrize(
    "environment", [play(), act(), stepped(SEEN, np.float32(0.5), terminated=np.bool_(True))]
)
def test_what_is_right_is_not_refused(environment: Mistake):
    environment()


class OneNumber(EpisodeEstimator):
    """Gives an advantage for each trajectory."""

    def estimate(self, rollout: Any, streams: Any) -> Any:
        return streams.gather(rollout.rewards).sum(1)


class Forgetful(AgentCallback):
    """Looks at the episodes, and does not give them back."""

    def on_trajectories(self, agent: Any, trajectories: Any) -> Any:
        self.played = trajectories


class Wordy(Countdown):
    """Shows text that is no observation."""

    def reset(self, seed: int, transition_seed: int = 0) -> Any:
        return super().reset(seed, transition_seed).text


class Narrow(Countdown):
    """Takes one seed."""

    def reset(self, seed: int) -> Observation:  # pyright: ignore
        return super().reset(seed)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.advantage=OneNumber", "PartError: OneNumber.estimate returned <torch.float32 (4,)"),
        ("trainer.callbacks=Forgetful", "PartError: Forgetful.on_trajectories returned None"),
        ("data.env=Wordy", "failed in reset: Wordy.reset returned"),
        ("data.env=Narrow", "PartError: Narrow.reset takes (self, seed), but is called with"),
    ],
)
def test_the_command_line_says_it_in_one_message(setting: str, said: str, run_dir: Path):
    key, _, name = setting.partition("=")
    override = f"--{key}={__name__}.{name}"
    with pytest.raises(SystemExit) as ended:
        main(["fit", *runs.arguments(override, "--trainer.limit_val_batches=0")])
    assert str(ended.value.code).startswith("vagentrl: ") and said in str(ended.value.code)
