"""GiGPO: groups of trajectories, and in them groups of turns that were played in one state."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.discounts import check_discounts
from vagentrl.advantages.estimator import EpisodeEstimator
from vagentrl.advantages.group import Scale, check_comparison, group_relative
from vagentrl.advantages.sequence import TokenSequence
from vagentrl.advantages.streams import Streams
from vagentrl.errors import ConfigError
from vagentrl.types import RolloutBatch


def gigpo(
    rewards: Float[Tensor, "N T"],
    action_mask: Bool[Tensor, "N T"],
    turn_ids: Int[Tensor, "N T"],
    state_ids: Int[Tensor, "N T"],
    group_ids: Int[Tensor, " N"],
    *,
    turn_gamma: float,
    step_coef: float,
    scale: Scale = "std",
) -> Float[Tensor, "N T"]:
    """Advantage of the trajectory + ``step_coef`` * advantage of the turn (arXiv 2505.10978).

    The advantage of the trajectory compares returns within its group. The advantage of the turn
    compares discounted returns-to-go of the turns with the same state; it is 0 for a state that was
    visited once. A trajectory may visit a state more than once.

    Args:
        rewards: Reward of each token; a turn earns the sum over its tokens.
        action_mask: True on sampled tokens; no other column is read.
        turn_ids: Number of the turn that sampled the token.
        state_ids: State in which the token's turn was played; no two groups share an id.
        group_ids: Group of each trajectory.
        turn_gamma: Discount from turn to turn.
        step_coef: Weight of the turn's advantage.
        scale: As in `group_relative`, for both comparisons.

    Returns:
        Advantages, 0 off the action mask.
    """
    tokens = TokenSequence.of(rewards, None, action_mask)
    turn_ends = tokens.turn_ends(turn_ids)
    turn_of, returns_K, noise_K = tokens.turn_returns(turn_ends, turn_gamma)
    states_K = state_ids.flatten()[tokens.index][turn_ends]
    steps_K = group_relative(returns_K, states_K, scale=scale, noise=noise_K)

    returns_N, noise_N = tokens.stream_returns()
    episodes_N = group_relative(returns_N, group_ids, scale=scale, noise=noise_N)
    return tokens.spread(episodes_N[tokens.stream_of] + step_coef * steps_K[turn_of])


class GiGPO(EpisodeEstimator):
    """Compares the trajectories of a group, and their turns that were played in the same state.

    It needs no critic, and unlike GRPO tells the turns of a trajectory apart. A turn's reward
    includes KL penalties on its tokens.

    Args:
        turn_gamma: Discount from turn to turn in the return-to-go of a turn.
        step_coef: Weight of the comparison of turns; 0 is GRPO.
        scale: ``std`` divides each comparison by its standard deviation, null does not.

    Raises:
        ConfigError: When ``turn_gamma`` is not between 0 and 1, ``step_coef`` is negative, or
            ``scale`` is neither.
    """

    needs_groups = True

    def __init__(
        self, turn_gamma: float = 0.95, step_coef: float = 1.0, scale: Scale = "std"
    ) -> None:
        check_discounts(turn_gamma=turn_gamma)
        check_comparison(scale, "mean")
        if not step_coef >= 0:
            raise ConfigError(
                f"step_coef is {step_coef}, but a negative weight would reward the worse turn; "
                "1 is published, 0 is GRPO"
            )
        self.turn_gamma = turn_gamma
        self.step_coef = step_coef
        self.scale: Scale = scale

    def estimate(self, rollout: RolloutBatch, streams: Streams) -> Tensor:
        return gigpo(
            streams.gather(rollout.rewards),
            streams.gather(rollout.action_mask),
            streams.gather(rollout.turn_ids, fill=-1),
            streams.gather(rollout.state_ids, fill=-1),
            rollout.group_ids,
            turn_gamma=self.turn_gamma,
            step_coef=self.step_coef,
            scale=self.scale,
        )
