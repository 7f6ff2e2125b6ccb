"""GiGPO: groups of trajectories, and inside them groups of turns played in the same state."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.estimator import EpisodeEstimator, check_discounts
from vagentrl.advantages.group import Scale, check_comparison, group_relative
from vagentrl.advantages.sequence import TokenSequence, returns_to_go
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
    """Group advantage of the trajectory + ``step_coef`` * that of the turn (arXiv 2505.10978).

    The first compares returns within the group, the second discounted returns-to-go of the
    turns with the same ``state_ids``: ids of one group must not recur in another. A
    trajectory may visit a state more than once. A state visited once gives the turn 0.
    """
    tokens = TokenSequence.of(rewards, None, action_mask)
    turn_ends = tokens.turn_ends(turn_ids)
    turn_of, rewards_K = tokens.turns(turn_ends)
    returns_K = returns_to_go(rewards_K, tokens.ends[turn_ends], turn_gamma)
    states_K = state_ids.flatten()[tokens.index][turn_ends]
    steps_K = group_relative(returns_K, states_K, scale=scale)

    returns = tokens.rewards.new_zeros(len(rewards)).index_add(0, tokens.stream_of, tokens.rewards)
    episodes = group_relative(returns, group_ids, scale=scale)
    return tokens.spread(episodes[tokens.stream_of] + step_coef * steps_K[turn_of])


class GiGPO(EpisodeEstimator):
    """Compares trajectories of a group, and the turns that they played in the same state.

    It needs no critic, and tells the turns of a trajectory apart where GRPO cannot. What a turn
    earned includes KL penalties on its tokens.

    Args:
        turn_gamma: Discount from turn to turn, for what followed a turn.
        step_coef: Weight of the comparison of turns; 0 leaves GRPO.
        scale: ``std`` divides each comparison by its standard deviation, null does not.
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
                "1 is published, 0 leaves GRPO"
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
