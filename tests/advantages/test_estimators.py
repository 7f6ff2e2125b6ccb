"""The estimator classes give the same credit however trajectories are laid out in rows."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vagentrl.advantages import (
    AdvantageEstimator,
    BiLevelGAE,
    CriticEstimator,
    DualDiscountGAE,
    EpisodeEstimator,
    GiGPO,
    GroupRelative,
    MaskedGAE,
    ReinforcePlusPlus,
    Streams,
    TurnGAE,
    TurnGroupRelative,
    VineTurn,
    bi_level_gae,
    whiten,
)
from vagentrl.errors import ConfigError
from vagentrl.types import Credit, RolloutBatch, Scores

# A row: its trajectory and its tokens, each (turn, reward, value), with turn -1 off-turn.
Token = tuple[int, float, float]
Row = tuple[int, list[Token]]

X = (-1, 0.0, 50.0)  # an observed token; its value must not matter
END = (-1, 0.0, 8.0)  # where the value after a truncated trajectory is read
# trajectory 0: two turns of two tokens and of one, truncated; 1: one turn; 2: three turns
FULL_HISTORY: list[Row] = [
    (0, [X, (0, -0.1, 1.0), (0, 1.0, 2.0), X, (1, 2.0, 3.0), X, END]),
    (1, [X, X, (0, 0.0, 4.0), (0, -1.0, 5.0)]),
    (2, [X, (0, 0.5, 1.5), X, (1, 0.0, 0.5), (1, 0.0, 2.5), X, (2, 3.0, -1.0)]),
]
# the same turns, one per row, with other observed tokens around them; trajectories interleaved
WINDOW: list[Row] = [
    (2, [X, X, (0, 0.5, 1.5)]),
    (0, [X, (0, -0.1, 1.0), (0, 1.0, 2.0)]),
    (1, [X, (0, 0.0, 4.0), (0, -1.0, 5.0)]),
    (2, [X, X, X, (1, 0.0, 0.5), (1, 0.0, 2.5)]),
    (0, [X, X, (1, 2.0, 3.0), X, END]),
    (2, [(2, 3.0, -1.0)]),
]
ESTIMATORS = [
    MaskedGAE(gamma=0.9, lam=0.8),
    MaskedGAE(gamma=0.9, lam=0.8, whiten=False),
    TurnGAE(turn_gamma=0.9, turn_lam=0.8),
    BiLevelGAE(gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6),
    DualDiscountGAE(token_gamma=0.9, token_lam=0.8, step_gamma=0.7, step_lam=0.6),
    GroupRelative(),
    GroupRelative(scale=None, baseline="leave_one_out"),
    ReinforcePlusPlus(gamma=0.9),
    ReinforcePlusPlus(gamma=0.9, baseline=True),
    GiGPO(turn_gamma=0.9),
    GiGPO(turn_gamma=0.9, step_coef=0.5, scale=None),
    TurnGroupRelative(turn_gamma=0.9),
    VineTurn(),
]
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


def make(rows: Sequence[Row], groups: Sequence[int] = (0, 1, 0)) -> tuple[RolloutBatch, Scores]:
    """Each group has two states, which its members' turns visit alternately."""
    width = max(len(tokens) for _, tokens in rows)
    padded = torch.tensor([tokens + [(-1, 0.0, 0.0)] * (width - len(tokens)) for _, tokens in rows])
    turn_ids, rewards, values = padded[..., 0].long(), padded[..., 1], padded[..., 2]
    bootstrap_index = torch.full((len(groups),), -1)
    for n, (trajectory, tokens) in enumerate(rows):
        if tokens[-1] == END:
            bootstrap_index[trajectory] = n * width + len(tokens) - 1
    trajectory_ids = torch.tensor([trajectory for trajectory, _ in rows])
    group_of_row = torch.tensor(groups)[trajectory_ids][:, None]
    rollout = RolloutBatch(
        input_ids=torch.zeros_like(turn_ids),
        attention_mask=torch.ones_like(turn_ids, dtype=torch.bool),
        action_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        state_ids=torch.where(turn_ids < 0, -1, 2 * group_of_row + turn_ids % 2),
        rewards=rewards,
        rollout_logprobs=torch.zeros_like(rewards),
        trajectory_ids=trajectory_ids,
        group_ids=torch.tensor(groups),
        policy_version=torch.zeros_like(turn_ids),
        bootstrap_index=bootstrap_index,
    )
    return rollout, Scores(old_logprobs=torch.zeros_like(values), values=values)


def by_trajectory(tensor: Tensor, rollout: RolloutBatch) -> list[list[float]]:
    """The credit of each sampled token, in the order of sampling (rows are in order of turns)."""
    return [
        tensor[mine][rollout.action_mask[mine]].tolist()
        for mine in (rollout.trajectory_ids == n for n in range(len(rollout.group_ids)))
    ]


def assert_same(actual: Credit, expected: Credit) -> None:
    torch.testing.assert_close(actual.advantages, expected.advantages)
    assert (actual.returns is None) == (expected.returns is None)
    if actual.returns is not None:
        torch.testing.assert_close(actual.returns, expected.returns)


@every_estimator
def test_windows_give_the_credit_of_the_full_history(estimator: AdvantageEstimator):
    rollout, scores = make(FULL_HISTORY)
    windows, window_scores = make(WINDOW)
    full, windowed = estimator(rollout, scores), estimator(windows, window_scores)
    for one, other in ((full.advantages, windowed.advantages), (full.returns, windowed.returns)):
        if one is None or other is None:
            assert one is other
            continue
        for expected, actual in zip(
            by_trajectory(one, rollout), by_trajectory(other, windows), strict=True
        ):
            assert actual == pytest.approx(expected)


@every_estimator
@pytest.mark.parametrize("rows", [FULL_HISTORY, WINDOW], ids=["full", "window"])
def test_the_order_of_rows_changes_nothing(estimator: AdvantageEstimator, rows: list[Row]):
    credit = estimator(*make(rows))
    order = torch.randperm(len(rows)).tolist()
    shuffled = estimator(*make([rows[n] for n in order]))
    reordered = None if credit.returns is None else credit.returns[order]
    assert_same(shuffled, Credit(credit.advantages[order], reordered))


@every_estimator
@pytest.mark.parametrize("rows", [FULL_HISTORY, WINDOW], ids=["full", "window"])
def test_padding_changes_nothing(estimator: AdvantageEstimator, rows: list[Row]):
    credit = estimator(*make(rows))
    # one long row of a fourth trajectory that sampled nothing widens the batch
    wide = estimator(*make([*rows, (3, [X] * 20)], groups=(0, 1, 0, 2)))
    assert not wide.advantages[len(rows)].any()

    def widen(tensor: Tensor) -> Tensor:
        return F.pad(tensor, (0, 20 - tensor.shape[1], 0, 1))

    returns = None if credit.returns is None else widen(credit.returns)
    assert_same(wide, Credit(widen(credit.advantages), returns))


@every_estimator
def test_a_batch_without_sampled_tokens_gets_no_credit(estimator: AdvantageEstimator):
    credit = estimator(*make([(0, [X, X]), (1, [X])], groups=(0, 0)))
    assert not credit.advantages.any()


def test_the_class_is_its_function_and_the_value_after_the_end():
    rollout, scores = make(FULL_HISTORY)
    assert scores.values is not None
    advantages, returns = bi_level_gae(
        rollout.rewards, scores.values, rollout.action_mask, rollout.turn_ids,
        bootstrap=torch.tensor([8.0, 0.0, 0.0]), gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6,
    )  # fmt: skip
    plain = BiLevelGAE(0.9, 0.8, 0.7, 0.6, whiten=False)(rollout, scores)
    assert_same(plain, Credit(advantages, returns))
    white = BiLevelGAE(0.9, 0.8, 0.7, 0.6)(rollout, scores)
    assert_same(white, Credit(whiten(advantages, rollout.action_mask), returns))


def test_group_relative_sums_the_rewards_of_a_trajectory():
    rollout, scores = make(WINDOW)
    credit = GroupRelative(scale=None)(rollout, replace(scores, values=None))
    # trajectory 0 earned 2.9, trajectory 2 earned 3.5, both in group 0; trajectory 1 is alone
    expected = [[-0.3] * 3, [0.0] * 2, [0.3] * 4]
    for actual, wanted in zip(by_trajectory(credit.advantages, rollout), expected, strict=True):
        assert actual == pytest.approx(wanted, abs=1e-6)
    assert credit.returns is None
    assert float(credit.advantages[~rollout.action_mask].abs().sum()) == 0.0


def test_credit_carries_no_gradient():
    rollout, scores = make(FULL_HISTORY)
    assert scores.values is not None
    scores.values.requires_grad_()
    credit = BiLevelGAE()(rollout, scores)
    assert not credit.advantages.requires_grad
    assert credit.returns is not None and not credit.returns.requires_grad


def test_an_estimator_says_what_it_needs():
    needs = {
        name: (estimator.needs_critic, estimator.needs_groups, estimator.needs_episodes)
        for estimator in ESTIMATORS
        for name in [type(estimator).__name__]
        if name != "ReinforcePlusPlus"
    }
    with_critic, grouped = (True, False, False), (False, True, True)
    assert needs == {
        "MaskedGAE": with_critic,
        "TurnGAE": with_critic,
        "BiLevelGAE": with_critic,
        "DualDiscountGAE": with_critic,
        "GroupRelative": grouped,
        "GiGPO": grouped,
        "TurnGroupRelative": grouped,
        "VineTurn": grouped,
    }
    assert not ReinforcePlusPlus().needs_groups
    assert ReinforcePlusPlus(baseline=True).needs_groups
    assert ReinforcePlusPlus().needs_episodes and not ReinforcePlusPlus().needs_critic


class Inputs(CriticEstimator):
    """Keeps what it was given."""

    def estimate(
        self,
        rewards: Tensor,
        values: Tensor,
        action_mask: Tensor,
        turn_ids: Tensor,
        bootstrap: Tensor,
    ) -> tuple[Tensor, Tensor]:
        self.seen = rewards, values, action_mask, turn_ids, bootstrap
        return rewards, values


class EpisodeInputs(EpisodeEstimator):
    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        self.seen = streams.gather(rollout.rewards)
        return self.seen


@pytest.mark.parametrize("rows", [FULL_HISTORY, WINDOW], ids=["full", "window"])
def test_an_estimator_sees_sampled_tokens_alone_padded_on_the_right(rows: list[Row]):
    rollout, scores = make(rows)
    estimator = Inputs(whiten=False)
    credit = estimator(rollout, scores)
    rewards, values, action_mask, turn_ids, bootstrap = estimator.seen
    wanted = torch.tensor([[-0.1, 1, 2, 0], [0, -1, 0, 0], [0.5, 0, 0, 3]])
    torch.testing.assert_close(rewards, wanted)
    assert values.tolist() == [[1, 2, 3, 0], [4, 5, 0, 0], [1.5, 0.5, 2.5, -1]]
    assert action_mask.int().tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert turn_ids.tolist() == [[0, 0, 1, -1], [0, 0, -1, -1], [0, 1, 1, 2]]
    assert bootstrap.tolist() == [8, 0, 0]
    # what it returns goes back to where it came from
    torch.testing.assert_close(credit.advantages, rollout.rewards * rollout.action_mask)
    episodes = EpisodeInputs()
    credit = episodes(rollout, scores)
    torch.testing.assert_close(episodes.seen, wanted)
    torch.testing.assert_close(credit.advantages, rollout.rewards * rollout.action_mask)


def test_the_defaults_are_the_documented_ones():
    assert MaskedGAE().discounts == {"gamma": 1, "lam": 1}
    assert TurnGAE().discounts == {"turn_gamma": 0.95, "turn_lam": 1}
    assert BiLevelGAE().discounts == {"gamma": 1, "lam": 1, "turn_gamma": 0.95, "turn_lam": 1}
    assert DualDiscountGAE().discounts == {
        "token_gamma": 1, "token_lam": 1, "step_gamma": 0.99, "step_lam": 0.95,
    }  # fmt: skip
    for estimator in (MaskedGAE(), TurnGAE(), BiLevelGAE(), DualDiscountGAE()):
        assert estimator.whiten is True
    assert (GroupRelative().scale, GroupRelative().baseline) == ("std", "mean")
    assert (GiGPO().turn_gamma, GiGPO().step_coef, GiGPO().scale) == (0.95, 1, "std")
    assert ReinforcePlusPlus().gamma == 1 and TurnGroupRelative().turn_gamma == 1


def test_discounts_of_0_leave_the_reward_of_the_token_itself():
    rollout, scores = make(FULL_HISTORY)
    credit = MaskedGAE(gamma=0.0, lam=0.0, whiten=False)(rollout, scores)
    assert scores.values is not None
    expected = (rollout.rewards - scores.values) * rollout.action_mask
    torch.testing.assert_close(credit.advantages, expected)


def test_gigpo_without_its_comparison_of_turns_is_grpo():
    rollout, scores = make(FULL_HISTORY)
    assert_same(GiGPO(step_coef=0.0)(rollout, scores), GroupRelative()(rollout, scores))


def test_reinforce_plus_plus_reads_the_groups_only_for_its_baseline():
    one, other = make(FULL_HISTORY, groups=(0, 1, 0)), make(FULL_HISTORY, groups=(0, 0, 0))
    assert_same(ReinforcePlusPlus()(*one), ReinforcePlusPlus()(*other))
    alone, together = (ReinforcePlusPlus(baseline=True)(*batch) for batch in (one, other))
    assert not torch.allclose(alone.advantages, together.advantages)


def test_an_estimator_of_ones_own_without_critic_or_groups_needs_neither():
    assert not EpisodeInputs.needs_critic and not EpisodeInputs.needs_groups
    assert not AdvantageEstimator.needs_episodes
    assert not Inputs(whiten=False).undiscounted


def test_a_missing_critic_is_named_with_its_remedy():
    rollout, scores = make(FULL_HISTORY)
    with pytest.raises(ConfigError, match=r"TurnGAE reads the critic's values.*GroupRelative"):
        TurnGAE()(rollout, replace(scores, values=None))


@pytest.mark.parametrize(
    ("build", "setting"),
    [
        (lambda: MaskedGAE(lam=1.5), "lam"),
        (lambda: TurnGAE(turn_gamma=-0.1), "turn_gamma"),
        (lambda: BiLevelGAE(turn_lam=2.0), "turn_lam"),
        (lambda: DualDiscountGAE(step_gamma=float("nan")), "step_gamma"),
        (lambda: ReinforcePlusPlus(gamma=1.1), "gamma"),
        (lambda: GiGPO(turn_gamma=-1.0), "turn_gamma"),
        (lambda: GiGPO(step_coef=-1.0), "step_coef"),
        (lambda: TurnGroupRelative(turn_gamma=2.0), "turn_gamma"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(build, setting: str):
    with pytest.raises(ConfigError, match=f"^{setting} is "):
        build()
