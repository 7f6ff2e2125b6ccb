import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests import toy
from tests.claims_toy import HONEST, ClaimsCountdown
from vagentrl.engines.base import GenerationRequest, Sampling
from vagentrl.engines.scripted import Line, ScriptedEngine
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, EngineDead, RolloutError
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.episodes import EnvironmentSlot, Episode
from vagentrl.rollout.report import episode_report
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Prompt, Reply, StepResult, Trajectory, Turn

VERSION = 5


class Moody(toy.Countdown):
    """Raises an error in the second step if the seed is odd."""

    def step(self, reply: Reply) -> StepResult:
        if self.turns == 1 and self.odd:
            raise ValueError("not today")
        return super().step(reply)

    def reset(self, seed: int, transition_seed: int = 0) -> Any:
        self.odd = seed % 2
        return super().reset(seed, transition_seed)


def collector(
    script: Sequence[Line] | Callable[[GenerationRequest], Line],
    environment: Callable[[], Environment] = toy.Countdown,
    *,
    images: bool = False,
    context_length: int = 512,
    delay_s: Any = 0.0,
    lockstep: bool = False,
) -> Collector:
    renderer = toy.renderer(images)
    engine = ScriptedEngine(script, toy.encode_reply, delay_s)
    engine.prepare(renderer.vocabulary(context_length))
    engine.policy_version = VERSION
    pools = {"toy": WorkerPool(environment, "toy", size=4)}
    return Collector(engine, renderer, pools, context_length, lockstep=lockstep)


def episodes(count: int, seed: int = 0) -> list[Episode]:
    return [Episode("toy", seed + n, group_id=n, private_seed=100 + n) for n in range(count)]


def play_one(playing: Collector, seed: int, **sampling: Any) -> Trajectory:
    [trajectory] = playing.collect([Episode("toy", seed, 9, 100)], Sampling(**sampling))
    return trajectory


def test_an_episode_ends_when_the_environment_terminates():
    played = play_one(collector([toy.GO]), seed=2)  # three to count down
    assert (played.stop, played.error) == ("terminated", None)
    assert [turn.reward for turn in played.turns] == [-0.25, -0.25, 1.0]
    assert [turn.observation.text[:6] for turn in played.turns] == ["3 left", "2 left", "1 left"]
    assert played.final_observation is not None
    assert played.final_observation.text.startswith("0 left")
    assert (played.environment, played.seed, played.group_id) == ("toy", 2, 9)
    assert played.transition_seed % 1000 == played.turns[0].metrics["luck"]  # as it was played
    assert [turn.policy_version for turn in played.turns] == [VERSION] * 3
    assert played.success


def test_an_episode_ends_when_the_environment_truncates():
    played = play_one(collector([toy.WAIT], partial(toy.Countdown, turn_limit=3)), seed=0)
    assert (played.stop, len(played.turns), played.success) == ("truncated", 3, False)
    assert played.final_observation is not None


def test_a_turn_keeps_the_tokens_that_were_added_and_sampled():
    playing = collector([toy.GO, toy.WAIT])
    played = play_one(playing, seed=1)
    first, second, third = played.turns
    assert first.prompt.ids == toy.renderer().first(toy.TASK, first.observation)
    assert second.prompt.ids == toy.renderer().next(second.observation)
    assert first.reply_ids == third.reply_ids == toy.encode_reply(toy.GO)
    assert second.reply_logprobs == (-1.0,) * len(toy.encode_reply(toy.WAIT))
    assert second.reply == Reply(toy.WAIT, actions=("wait",))
    requests = playing.engine.requests  # pyright: ignore
    assert requests[0].prompt_ids == first.prompt.ids
    assert requests[1].prompt_ids == first.prompt.ids + first.reply_ids + second.prompt.ids
    assert len({request.seed for request in requests}) == 3
    assert len({request.session for request in requests}) == 1


def test_the_engine_gets_all_images_of_the_context_in_order():
    playing = collector([toy.GO], partial(toy.Countdown, images=True), images=True)
    played = play_one(playing, seed=1)
    shown = [turn.observation.images[0] for turn in played.turns]
    assert [image.width for image in shown] == [84, 56]  # two left, one left
    requests = playing.engine.requests  # pyright: ignore
    assert [request.images for request in requests] == [(shown[0],), (shown[0], shown[1])]
    image_token = toy.renderer(images=True).image_token_id
    assert [request.prompt_ids.count(image_token) for request in requests] == [3, 3 + 2]


def test_trajectories_come_in_the_order_of_their_episodes():
    slow_first = lambda request: 0.05 - 0.01 * request.session  # noqa: E731
    played = collector([toy.GO], delay_s=slow_first).collect(episodes(4), Sampling())
    assert [trajectory.seed for trajectory in played] == [0, 1, 2, 3]
    assert [len(trajectory.turns) for trajectory in played] == [1, 2, 3, 4]


def test_a_failed_environment_is_a_failed_trajectory_and_others_complete():
    played = collector([toy.GO], Moody).collect(episodes(4), Sampling())
    assert [trajectory.stop for trajectory in played] == [
        "terminated", "failed", "terminated", "failed"
    ]  # fmt: skip
    failed = played[1]
    assert failed.error is not None
    assert "EnvError: environment 'toy' failed in step: ValueError: not today" in failed.error
    assert len(failed.turns) == 1  # what was played before
    assert failed.final_observation is None


def test_a_failed_engine_is_a_failed_trajectory():
    fails = lambda request: RuntimeError("no memory") if request.session == 1 else toy.GO  # noqa: E731
    played = collector(fails).collect(episodes(3), Sampling())
    assert [trajectory.stop for trajectory in played] == ["terminated", "failed", "terminated"]
    assert played[1].error == "EngineError: the script fails here: no memory"


@pytest.mark.parametrize("way", ["alone", "lockstep", "slots"])
def test_a_dead_engine_ends_the_collection(way: str):
    def dies_of_the_long(request: GenerationRequest) -> str:
        if len(playing.engine.requests) > 4:  # pyright: ignore
            raise EngineDead("gone")
        return toy.GO

    playing = collector(dies_of_the_long)
    playing.lockstep = way == "lockstep"
    with pytest.raises(EngineDead, match="gone"):
        if way == "slots":
            playing.collect_turns(
                [EnvironmentSlot(lambda n: episodes(4)[3]) for _ in range(2)], 4, Sampling()
            )
        else:
            playing.collect(episodes(4), Sampling())


def test_a_collection_in_which_everything_failed_is_an_error():
    odd = [Episode("toy", seed, 0, seed) for seed in (1, 3)]
    with pytest.raises(RolloutError, match=r"all 2 episodes failed; the first one: .*not today"):
        collector([toy.GO], Moody).collect(odd, Sampling())


def test_a_collection_of_nothing_is_nothing():
    assert collector([toy.GO]).collect([], Sampling()) == []


def test_a_reply_without_end_of_turn_is_not_executed():
    reply = toy.encode_reply(toy.GO)
    playing = collector([toy.GO])
    played = play_one(playing, seed=0, max_tokens=len(reply) - 1)  # well formed but for its end
    turn = played.turns[0]
    assert turn.finish == "length"
    assert turn.reply_ids == reply[:-1]
    assert turn.reply == Reply(
        toy.GO, actions=(), problem=f"no end of turn within {len(reply) - 1} tokens"
    )
    assert played.stop == "truncated"  # it never got to count down
    assert played.turns[1].prompt.ids == toy.renderer().next(
        played.turns[1].observation, ended=False
    )
    assert played.turns[1].prompt.ids[0] == reply[-1]  # the end of turn is supplied


def test_a_cut_reply_that_is_malformed_too_says_both():
    played = play_one(collector(["I go, I go"]), seed=0, max_tokens=2)
    problem = played.turns[0].reply.problem
    assert problem is not None
    assert problem.startswith("no end of turn within 2 tokens; ")


def test_a_full_context_truncates_the_episode_between_two_turns():
    free = play_one(collector([toy.WAIT]), seed=3, max_tokens=20)
    assert len(free.turns) == 5
    # tokens of the context when the third reply is asked for
    third = sum(len(turn.prompt.ids) for turn in free.turns[:3])
    third += sum(len(turn.reply_ids) for turn in free.turns[:2])
    for context_length, turns in ((third + 20, 3), (third + 19, 2)):
        played = play_one(
            collector([toy.WAIT], context_length=context_length), seed=3, max_tokens=20
        )
        assert played.stop == "truncated"
        assert played.turns == free.turns[:turns]
        assert played.final_observation == free.turns[turns].observation


class Verbose(toy.Countdown):
    """Says too much in episodes with an odd seed."""

    def reset(self, seed: int, transition_seed: int = 0) -> Any:
        shown = super().reset(seed, transition_seed)
        return replace(shown, text=shown.text + " and so on" * 200 * (seed % 2))


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_first_prompt_without_room_for_a_reply_fails_its_episode_alone(lockstep: bool):
    playing = collector([toy.GO], Verbose, lockstep=lockstep)
    played = playing.collect(episodes(4), Sampling(max_tokens=20))
    assert [trajectory.stop for trajectory in played] == ["terminated", "failed"] * 2
    assert played[1].turns == () and played[1].error is not None
    assert played[1].error.startswith("PromptTooLong: the first prompt of environment 'toy' has ")
    assert "but the context is 512 tokens long. Shorten" in played[1].error
    report = episode_report(played, "rollout/")
    assert (report["rollout/failed"], report["rollout/episodes"]) == (0.5, 4)


def test_such_an_episode_costs_a_lane_one_turn():
    playing = collector([toy.GO], Verbose)
    lane = EnvironmentSlot(lambda number: Episode("toy", number + 1, 0, 100))  # the first is odd
    failed, following = playing.collect_turns([lane], 3, Sampling(max_tokens=20))
    assert (failed.stop, following.stop) == ("failed", "cut")
    assert len(following.turns) == 2


def test_when_all_first_prompts_are_too_long_that_is_an_error():
    prompt = len(play_one(collector([toy.GO]), seed=3).turns[0].prompt.ids)
    tight = collector([toy.GO], context_length=prompt + 20)
    assert play_one(tight, seed=3, max_tokens=20).turns
    message = (
        "all 1 episodes failed; the first one: PromptTooLong: the first prompt of environment "
        f"'toy' has {prompt} tokens and a reply may have 21, "
        f"but the context is {prompt + 20} tokens"
    )
    with pytest.raises(RolloutError, match=message):
        play_one(tight, seed=3, max_tokens=21)


def test_images_for_a_model_that_reads_text_are_a_config_error():
    with pytest.raises(ConfigError, match="image"):
        play_one(collector([toy.GO], partial(toy.Countdown, images=True)), seed=0)


def test_members_of_a_group_share_the_seed_and_nothing_else():
    group = [Episode("toy", seed=3, group_id=0, private_seed=n) for n in range(8)]
    playing = collector([toy.GO])
    played = playing.collect(group, Sampling())
    starts = {trajectory.turns[0].observation.text.split(",")[0] for trajectory in played}
    assert starts == {"4 left"}
    assert len({trajectory.turns[0].metrics["luck"] for trajectory in played}) == 8
    requests = playing.engine.requests  # pyright: ignore
    assert len({request.seed for request in requests}) == len(requests) == 8 * 4


def by_seed(request: GenerationRequest) -> str:
    """Samples replies by the seed of the request, as a policy would."""
    return toy.GO if request.seed // 7 % 2 else toy.WAIT


def test_an_episode_is_the_same_alone_and_among_others():
    uneven = lambda request: request.seed % 5 / 500  # noqa: E731
    crowd = collector(by_seed, delay_s=uneven).collect(episodes(20), Sampling())
    assert {len(trajectory.turns) for trajectory in crowd} >= {2, 3, 4, 5}
    for number in (0, 7, 19):
        [alone] = collector(by_seed).collect([episodes(20)[number]], Sampling())
        assert alone == crowd[number]


def test_in_lockstep_the_same_episodes_are_played():
    ended: list[Trajectory] = []
    fails = lambda request: RuntimeError("?") if request.session == 5 else by_seed(request)  # noqa: E731
    freely = collector(fails, Moody).collect(episodes(20), Sampling())
    together = collector(fails, Moody, lockstep=True)
    assert together.collect(episodes(20), Sampling(), on_end=ended.append) == freely
    assert ended == freely
    assert sorted(together.engine.released) == list(range(20))  # pyright: ignore


def test_in_lockstep_nobody_is_a_turn_ahead():
    playing = collector([toy.GO], lockstep=True, delay_s=lambda request: request.session / 200)
    playing.collect(episodes(4), Sampling())
    asked = [request.session for request in playing.engine.requests]  # pyright: ignore
    assert asked == [0, 1, 2, 3, 1, 2, 3, 2, 3, 3]  # episode n takes n + 1 turns


def test_collecting_again_plays_the_same():
    playing = collector(by_seed)
    assert playing.collect(episodes(6), Sampling()) == playing.collect(episodes(6), Sampling())


def test_every_episode_is_announced_once_when_it_ends():
    ended: list[Trajectory] = []
    playing = collector([toy.GO], Moody)
    played = playing.collect(episodes(6), Sampling(), on_end=ended.append)
    assert sorted(trajectory.seed for trajectory in ended) == [0, 1, 2, 3, 4, 5]
    assert sorted(map(id, ended)) == sorted(map(id, played))


def test_every_session_is_released_once():
    playing = collector([toy.GO], Moody)
    playing.collect(episodes(6), Sampling())
    assert sorted(playing.engine.released) == [0, 1, 2, 3, 4, 5]  # pyright: ignore


def slot(seed: int = 3) -> EnvironmentSlot:
    return EnvironmentSlot(
        lambda number: Episode("toy", seed, group_id=0, private_seed=100 + number)
    )


def test_a_slot_plays_on_where_it_was_cut_and_begins_the_next_episode_when_one_ends():
    playing, place = collector([toy.GO]), slot(seed=2)  # three to count down
    [cut] = playing.collect_turns([place], 2, Sampling())
    assert (cut.stop, len(cut.turns), cut.earlier_turns) == ("cut", 2, 0)
    assert cut.end == Prompt(toy.renderer().next(cut.final_observation))  # pyright: ignore
    rest, following = playing.collect_turns([place], 2, Sampling())
    assert (rest.stop, len(rest.turns), rest.earlier_turns) == ("terminated", 1, 2)
    assert rest.earlier_reward == -0.5
    assert rest.turns[0].prompt.whole
    everything = [*cut.turns[0].prompt.ids, *cut.turns[0].reply_ids]
    everything += [*cut.turns[1].prompt.ids, *cut.turns[1].reply_ids, *cut.end.ids]  # pyright: ignore
    assert rest.turns[0].prompt.ids == tuple(everything)
    assert (following.stop, following.earlier_turns) == ("cut", 0)
    assert following.turns[0].observation.text != cut.turns[0].observation.text  # other luck


def test_every_turn_of_an_episode_has_the_version_of_the_weights_that_sampled_it():
    playing, place = collector([toy.GO]), slot(seed=3)  # four to count down
    [cut] = playing.collect_turns([place], 3, Sampling())
    playing.engine.policy_version = VERSION + 2
    rest, following = playing.collect_turns([place], 3, Sampling())
    assert [turn.policy_version for turn in cut.turns] == [VERSION] * 3
    assert [turn.policy_version for turn in rest.turns] == [VERSION + 2]
    assert [turn.policy_version for turn in following.turns] == [VERSION + 2] * 2


def test_a_slot_goes_on_elsewhere_from_its_state():
    whole, playing, place = collector([toy.GO]), collector([toy.GO]), slot()
    unbroken = slot()
    wanted = [whole.collect_turns([unbroken], 3, Sampling()) for _ in range(3)]
    found = []
    for _ in range(3):
        found.append(playing.collect_turns([place], 3, Sampling()))
        state = place.state_dict()
        place.close(playing)
        place = slot()
        place.load_state_dict(state)
    assert found == wanted


def test_an_environment_that_plays_another_way_a_second_time_fails_that_episode_only():
    playing, place = collector([toy.GO]), slot(seed=3)
    playing.collect_turns([place], 2, Sampling())
    state = place.state_dict()
    elsewhere = collector([toy.GO], partial(toy.Countdown, turn_limit=2))  # it ends sooner
    place = slot(seed=3)
    place.load_state_dict(state)
    failed, following = elsewhere.collect_turns([place], 2, Sampling())
    assert failed.error is not None
    assert "ended an episode on replay (truncated)" in failed.error
    assert following.stop == "cut"


def test_episodes_can_be_played_where_an_event_loop_is_running():
    async def notebook() -> Trajectory:
        return play_one(collector([toy.GO]), seed=1)

    assert asyncio.run(notebook()) == play_one(collector([toy.GO]), seed=1)


def test_claims_stand_beside_the_state_before_and_after_the_reply():
    def said(left: str, action: str) -> str:
        claims = f"<observation>{left}</observation><prediction>?</prediction>"
        return f"<think>{claims}</think><answer>{action}</answer>"

    script = [said("four", "go"), said("4", "wait"), "what?"]
    played = play_one(collector(script, ClaimsCountdown), seed=3, max_tokens=200)
    first, second, malformed = played.turns[:3]
    seen, expected = first.claims
    assert (seen.kind, seen.text, seen.truth) == ("observation", "four", "3 are left")
    assert (expected.kind, expected.text, expected.truth) == ("prediction", "?", "2 are left")
    assert (seen.representation, seen.rubric) == ("natural", "the number counts")
    assert [claim.truth for claim in second.claims] == ["2 are left", "2 are left"]
    assert malformed.claims == ()


def test_claims_show_the_pictures_of_the_state_that_they_are_about():
    # ClaimsCountdown starts with 3 left, and a picture is 28 * (left + 1) wide.
    playing = collector(HONEST[:1], partial(ClaimsCountdown, images=True), images=True)
    [turn, *_] = play_one(playing, seed=3, max_tokens=200).turns
    widths = {claim.kind: [image.width for image in claim.images] for claim in turn.claims}
    assert widths == {"observation": [112], "prediction": [84]}


def test_a_reply_that_was_cut_off_makes_no_claim():
    whole = HONEST[0]
    playing = collector([toy.encode_reply(whole)[:-1]], ClaimsCountdown)  # all but the end of turn
    turn = play_one(playing, seed=3, max_tokens=200).turns[0]
    assert turn.reply.observation_claim == "3 are left"
    assert (turn.finish, turn.claims) == ("length", ())


@pytest.mark.parametrize("lockstep", [False, True])
def test_every_turn_is_told_when_it_ends(lockstep: bool):
    told: list[Turn] = []
    playing = collector([toy.GO], lockstep=lockstep)
    played = playing.collect(episodes(3), Sampling(), on_turn=told.append)
    ended = [turn for trajectory in played for turn in trajectory.turns]
    assert len(told) == 1 + 2 + 3
    assert {id(turn) for turn in told} == {id(turn) for turn in ended}


def test_turns_that_are_played_again_are_not_told_twice():
    make = lambda: EnvironmentSlot(lambda number: Episode("toy", 3, 0, 7))  # noqa: E731
    told: list[Turn] = []
    first, second = collector([toy.WAIT]), collector([toy.WAIT])
    slot = make()
    first.collect_turns([slot], 2, Sampling(), on_turn=told.append)
    again = make()
    again.load_state_dict(slot.state_dict())
    second.collect_turns([again], 1, Sampling(), on_turn=told.append)
    assert len(told) == 2 + 1
