"""Which scalars share a chart in TensorBoard's tab *Custom Scalars*."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Chart:
    """A chart of a board.

    Attributes:
        title: Its heading.
        tags: Regular expressions; the chart shows every scalar whose whole name matches one.
        interval: The tags are three names instead: of a value and of the two ends of its interval,
            which TensorBoard draws as a band.
    """

    title: str
    tags: tuple[str, ...]
    interval: bool = False

    def shows(self, name: str) -> bool:
        """Whether a scalar is on this chart."""
        return any(re.fullmatch(tag, name) for tag in self.tags)

    def as_content(self) -> list[object]:
        """The chart as ``SummaryWriter.add_custom_scalars`` wants it."""
        if self.interval:
            return ["Margin", list(self.tags)]
        # TensorBoard asks only whether the beginning of a name matches.
        return ["Multiline", [f"^(?:{tag})$" for tag in self.tags]]


BOARDS: dict[str, tuple[Chart, ...]] = {
    "Learning": (
        Chart(
            "held-out success, with its 95 % interval",
            ("val/success_rate", "val/success_rate_low", "val/success_rate_high"),
            interval=True,
        ),
        Chart("success", ("(rollout|val|test)/success_rate",)),
        Chart("return", ("(rollout|val|test)/return",)),
        Chart("success, by environment", ("(rollout|val|test)/[^/]+/success_rate",)),
        Chart("return, by environment", ("(rollout|val|test)/[^/]+/return",)),
        Chart("turns of an episode", ("(rollout|val|test)/([^/]+/)?turns",)),
        Chart("last and best held-out success", ("hparams/.*",)),
    ),
    "Echo trap": (
        Chart("spread of rewards within a group", ("rollout/group_std",)),
        Chart("entropy", ("train/entropy",)),
        Chart("gradient norm", ("optim/.*grad_norm", "echo_trap/gradient_spike")),
        Chart(
            "groups to learn from", ("rollout/kept_groups", "echo_trap/(no_signal|failed_alike)")
        ),
        Chart("length of a reply", ("rollout/reply_tokens",)),
        Chart(
            "what replies have in common",
            ("echo_trap/(opening_share|template_share|repeated_.*|similarity)",),
        ),
        Chart("variety of replies", (r"echo_trap/(distinct_\d|mutual_information)",)),
        Chart("thoughts", ("echo_trap/(thought_words|without_thought)",)),
        Chart("troubles and alarms", ("echo_trap/(progress|signal|variety|stability|alarm)",)),
        Chart("all that is measured", ("echo_trap/.*",)),
    ),
    "Optimisation": (
        Chart("loss and its terms", ("train/.*loss", "train/entropy_bonus")),
        Chart("how far an update goes", ("train/approximate_kl", "train/clip_fraction")),
        Chart("KL to the reference", ("rollout/kl", "rollout/kl_coefficient")),
        Chart("entropy", ("train/entropy",)),
        Chart("the critic: explained variance of the returns", ("rollout/explained_variance",)),
        Chart("gradient norms", ("optim/.*grad_norm",)),
        Chart("skipped steps", ("optim/skipped_steps",)),
        Chart("learning rates", ("optim/.*_lr",)),
    ),
    "Rollout": (
        Chart(
            "replies",
            (
                "(rollout|val|test)/([^/]+/)?(malformed_replies|unfinished_replies|valid_actions)",
                "(rollout|val|test)/([^/]+/)?repaired_actions",
            ),
        ),
        Chart("tokens of a reply", ("(rollout|val|test)/([^/]+/)?reply_tokens",)),
        Chart("episodes", ("(rollout|val|test)/([^/]+/)?(episodes|distinct_states)",)),
        Chart("how episodes end", ("(rollout|val|test)/([^/]+/)?(failed|truncated)",)),
        Chart("groups", ("rollout/(kept_groups|group_std)",)),
        Chart("worlds", ("rollout/([^/]+/)?(weight|epochs)",)),
        Chart(
            "claims",
            (
                "(rollout|val|test)/([^/]+/)?(observation|prediction)_(score|right)",
                "rollout/self_prediction.*",
            ),
        ),
        Chart("judges", ("judge/.*", "(val|test)/([^/]+/)?judge/.*")),
        Chart("hints", ("(rollout|val|test)/([^/]+/)?(hint[^/]*|explore_hints)",)),
        Chart("continuations", ("rollout/continuation.*",)),
    ),
    "Engine agreement": (
        Chart("mean difference of log-probs", ("rollout/logprob_gap(_images|_text)?",)),
        Chart("largest difference of log-probs", ("rollout/logprob_gap_max.*",)),
        Chart("KL(engine || trainer)", ("rollout/logprob_kl.*",)),
        Chart("share of tokens beyond", ("rollout/logprob_beyond.*",)),
        Chart(
            "effective share of the samples",
            ("rollout/logprob_sample_size.*", "train/importance_sample_size"),
        ),
        Chart(
            "importance weights",
            ("train/importance_(weight|capped|floored|masked)",),
        ),
        Chart("age of the weights that sampled", ("rollout/staleness(_max)?",)),
    ),
    "Time": (
        Chart("seconds of each stage", ("time/.*",)),
        Chart("tokens per second", ("rollout/tokens_per_s",)),
        Chart("sampled tokens", ("rollout/(sampled|continuation)_tokens",)),
        Chart("passes that only fill up", ("train/fillers",)),
    ),
}
"""The charts of each board. They are the same in every run: TensorBoard merges the layouts of all
runs that it shows, and a chart without scalars stays empty."""


def layout() -> dict[str, dict[str, list[object]]]:
    """The boards as ``SummaryWriter.add_custom_scalars`` wants them."""
    return {
        board: {chart.title: chart.as_content() for chart in charts}
        for board, charts in BOARDS.items()
    }


def boards_of(name: str) -> list[str]:
    """The boards that show a scalar."""
    return [board for board, charts in BOARDS.items() if any(chart.shows(name) for chart in charts)]
