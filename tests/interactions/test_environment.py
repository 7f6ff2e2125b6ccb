"""A conversation with a user's class, as verl would hold it, and where it is better."""

import logging
import math
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.interactions.tables import (
    CUT_OFF,
    ROWS,
    SEED,
    SPLITS,
    calls,
    environment,
    interaction,
    say,
    truth,
)
from tests.interactions.user_code import user_module
from vagentrl.datasets import ListTasks
from vagentrl.environment import Split, seed_of
from vagentrl.errors import ConfigError, EnvError, RowError
from vagentrl.formats import NoThink
from vagentrl.interactions import InteractionEnvironment, Lifecycle, registry
from vagentrl.types import Observation

__all__ = ["user_module"]


@pytest.fixture
def solver(user_module: str) -> InteractionEnvironment:
    return environment(f"{user_module}.SolverInteraction")


def returning(user_module: str, returned: Any, **settings: Any) -> InteractionEnvironment:
    """An environment whose interaction returns this."""
    rows = [
        row | {"interaction_kwargs": {"name": "it", "returns": returned, "number": number}}
        for number, row in enumerate(ROWS)
    ]
    return environment(f"{user_module}.ReturningInteraction", rows=rows, **settings)


def test_a_conversation_goes_through_all_states(solver: InteractionEnvironment):
    assert solver.lifecycle is Lifecycle.COMPLETED
    question = solver.reset(SEED)
    assert solver.lifecycle is Lifecycle.GENERATING
    assert question == Observation(solver._task(SEED).messages[-1]["content"])
    wrong = say(solver, "no idea")
    assert solver.lifecycle is Lifecycle.GENERATING
    assert wrong.observation == Observation("Wrong, try again.")
    assert (wrong.reward, wrong.terminated, wrong.truncated) == (0.0, False, False)
    assert wrong.metrics == {
        "tries": 1.0, "interaction_score": 0.0, "success": 0.0, "format_valid": 1.0
    }  # fmt: skip
    right = say(solver, truth(solver, SEED))
    assert solver.lifecycle is Lifecycle.COMPLETED
    assert (right.reward, right.terminated, right.truncated) == (1.0, True, False)
    assert right.metrics["success"] == 1.0
    assert interaction(solver)._instance_dict == {}


def test_the_interaction_sees_what_verl_shows_it(solver: InteractionEnvironment):
    solver.reset(SEED)
    say(solver, "no idea")
    say(solver, truth(solver, SEED))
    task = solver._task(SEED)
    [(_, instance, kwargs)] = calls(solver, "start")
    assert len(instance) == 32  # uuid4().hex
    # all of the row's arguments but the ones that the method names itself, `name` included
    assert kwargs == {"name": "it", "numbers": task.interaction["numbers"]}
    (_, first, more, messages), (_, second, _, later) = calls(solver, "generate")
    assert first == second == instance
    assert more == dict(task.interaction)
    assert messages == [task.messages[0], {"role": "assistant", "content": "no idea"}]
    assert later == [
        *messages,
        {"role": "user", "content": "Wrong, try again."},
        {"role": "assistant", "content": truth(solver, SEED)},
    ]
    assert calls(solver, "finalize") == [("finalize", instance)]


def test_the_reply_reaches_the_interaction_as_it_was_written(user_module: str):
    tagged = environment(f"{user_module}.SolverInteraction", format=NoThink())
    tagged.reset(SEED)
    say(tagged, "<answer>7</answer> ")
    result = tagged.step(CUT_OFF)  # one that a limit of tokens cut off is answered, too
    assert result.metrics["format_valid"] == 0.0
    replies = [messages[-1]["content"] for *_, messages in calls(tagged, "generate")]
    assert replies == ["<answer>7</answer> ", "no end"]
    tagged.close()


def test_a_class_that_empties_the_messages_harms_nobody(user_module: str):
    mutating = environment(f"{user_module}.MutatingInteraction")
    seen = []
    for _ in range(2):  # the second episode has the same row
        mutating.reset(SEED)
        say(mutating, "no")
        say(mutating, truth(mutating, SEED))
        seen.append([entry for entry in interaction(mutating).log if isinstance(entry, list)][-1])
    task = mutating._task(SEED)
    n = task.interaction["numbers"]
    assert len(n) == 1 and seen[0] == seen[1]
    assert [message["content"] for message in seen[0]] == [
        task.messages[0]["content"], "no", "Wrong, try again.", truth(mutating, SEED)
    ]  # fmt: skip


def test_the_given_instance_id_counts_as_in_verl(
    user_module: str, caplog: pytest.LogCaptureFixture
):
    renaming = environment(f"{user_module}.RenamingInteraction")
    for _ in range(2):
        renaming.reset(SEED)
        assert say(renaming, truth(renaming, SEED)).terminated
    assert interaction(renaming)._instance_dict == {}
    assert caplog.text.count("returned another instance_id than it was given") == 1


def test_methods_without_instance_id_are_called_without(user_module: str):
    bare = environment(f"{user_module}.BareInteraction", reward="external", max_assistant_turns=1)
    kind = type(interaction(bare))
    bare.reset(SEED)
    assert say(bare, "anything").reward == 0.75
    assert kind.finalized == 1


def test_a_class_that_derives_from_nothing_will_do(user_module: str):
    ducks = environment(f"{user_module}.Ducks")
    ducks.reset(SEED)
    assert say(ducks, "hello").observation.text == "Quack."


def test_a_method_that_is_no_coroutine_is_named(user_module: str):
    plain = environment(f"{user_module}.Plain")
    plain.reset(SEED)
    with pytest.raises(EnvError, match=r"Plain.generate_response failed: .* with `async def`"):
        say(plain, "hello")
    assert interaction(plain)._instance_dict == {}


# ---------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ({"max_assistant_turns": 3}, 3),
        # after two answers of the user the agent replies once more, as in verl
        ({"max_user_turns": 2, "max_assistant_turns": None}, 3),
        ({"max_user_turns": 1, "max_assistant_turns": 9}, 2),
        ({"max_user_turns": 9, "max_assistant_turns": 1}, 1),
        ({}, 16),
    ],
)
@pytest.mark.parametrize("final_turn", ["score", "skip"])
def test_an_interaction_that_never_ends_is_truncated(
    user_module: str, limits: dict[str, Any], turns: int, final_turn: Any
):
    stubborn = environment(f"{user_module}.StubbornInteraction", **limits, final_turn=final_turn)
    stubborn.reset(SEED)
    results = [say(stubborn, truth(stubborn, SEED))]
    while not results[-1].truncated:
        results.append(say(stubborn, truth(stubborn, SEED)))
    assert not any(result.terminated for result in results)
    assert len(results) == turns
    rewards = [result.reward for result in results]
    # verl never asks the interaction about the last reply, so that it has no score
    assert rewards == [1.0] * (turns - 1) + [1.0 if final_turn == "score" else 0.0]
    assert len(calls(stubborn, "generate")) == turns - (final_turn == "skip")
    assert ("interaction_score" in results[-1].metrics) == (final_turn == "score")
    assert results[-1].metrics["success"] == 0.0  # the interaction did not end it
    assert interaction(stubborn)._instance_dict == {}


def test_an_end_by_the_interaction_counts_before_a_limit(user_module: str):
    solver = environment(f"{user_module}.SolverInteraction", max_assistant_turns=1)
    solver.reset(SEED)
    result = say(solver, truth(solver, SEED))
    assert (result.terminated, result.truncated) == (True, False)


# --------------------------------------------------------------------------------------- rewards


@pytest.mark.parametrize(
    ("settings", "rewards"),
    [
        # scores 0, 0, 1
        ({"reward": "sum"}, [0.0, 0.0, 1.0]),
        ({"reward": "sum", "weights": [4.0, 2.0]}, [0.0, 0.0, 2.0]),
        ({"reward": "last", "weights": [4.0, 2.0, 0.5]}, [0.0, 0.0, 0.5]),
        ({"reward": "external"}, [0.0, 0.0, 1.0]),
        ({"reward": "external", "weights": [3.0]}, [0.0, 0.0, 3.0]),
    ],
)
def test_rewards_are_made_of_the_scores(
    user_module: str, settings: dict[str, Any], rewards: list[float]
):
    solver = environment(f"{user_module}.SolverInteraction", **settings)
    solver.reset(SEED)
    replies = ["no", "no", truth(solver, SEED)]
    assert [say(solver, reply).reward for reply in replies] == rewards


@pytest.mark.parametrize(
    ("settings", "rewards"),
    [
        # a stubborn interaction scores 1, 0, and the third reply is wrong again
        ({"reward": "sum", "weights": [4.0, 2.0]}, [4.0, 0.0, 0.0]),
        ({"reward": "last"}, [0.0, 0.0, 0.0]),
        ({"reward": "last", "final_turn": "skip"}, [0.0, 0.0, 0.0]),
    ],
)
def test_early_scores_count_only_in_a_sum(
    user_module: str, settings: dict[str, Any], rewards: list[float]
):
    stubborn = environment(f"{user_module}.StubbornInteraction", max_assistant_turns=3, **settings)
    stubborn.reset(SEED)
    replies = [truth(stubborn, SEED), "no", "no"]
    assert [say(stubborn, reply).reward for reply in replies] == rewards


def test_without_a_score_for_the_last_turn_the_last_score_is_the_one_before(user_module: str):
    stubborn = environment(
        f"{user_module}.StubbornInteraction",
        max_assistant_turns=2,
        reward="last",
        final_turn="skip",
        weights=[0.5, 7.0],
    )
    stubborn.reset(SEED)
    # the score 1 is of the first turn, and so is its weight
    assert [say(stubborn, truth(stubborn, SEED)).reward for _ in range(2)] == [0.0, 0.5]


def test_success_is_an_end_with_a_high_score(user_module: str):
    returned = (True, "Almost.", 0.75, {})
    for success_score, success in ((0.7, 1.0), (0.8, 0.0)):
        almost = returning(user_module, returned, success_score=success_score)
        almost.reset(SEED)
        assert say(almost, "x").metrics["success"] == success


# -------------------------------------------------------------------------- what may be returned


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"returned None; return \(should_terminate, response, score, metrics\)"),
        ("well done", "returned 'well done'"),
        ((True, "a", 1.0), r"returned \(True, 'a', 1.0\)"),
        ((None, "a", 1.0, {}), "None as should_terminate; return True or False"),
        (("no", "a", 1.0, {}), r"'no' \(str\) as should_terminate"),
        ((True, None, 1.0, {}), "None as response; return a text, or a list"),
        ((True, b"a", 1.0, {}), "as response"),
        ((True, "a", None, {}), "None as score; return a finite number"),
        ((True, "a", "1", {}), "as score"),
        ((True, "a", math.nan, {}), "nan .* as score"),
        ((True, "a", math.inf, {}), "inf .* as score"),
        ((True, "a", 10**400, {}), "as score"),
        ((True, "a", 1.0, 3), "as metrics"),
        ((True, ["a"], 1.0, {}), "as a content block; a block is"),
        ((True, [{"type": "image", "image": 3}], 1.0, {}), "3 .* as an image"),
        ((True, [{"type": "image", "image": b"GIF"}], 1.0, {}), "cannot be opened"),
        ((True, [{"type": "image", "image": "/nowhere.png"}], 1.0, {}), "cannot be opened"),
    ],
)
def test_what_cannot_be_used_is_shown(user_module: str, returned: Any, message: str):
    wrong = returning(user_module, returned)
    wrong.reset(SEED)
    with pytest.raises(EnvError, match=f"ReturningInteraction.generate_response .*{message}"):
        say(wrong, "x")
    assert wrong.lifecycle is Lifecycle.COMPLETED
    assert interaction(wrong)._instance_dict == {}
    with pytest.raises(EnvError, match="call reset"):
        say(wrong, "x")


@pytest.mark.parametrize("returned", [(False, "a", True, None), [False, "a", 1, {}]])
def test_what_verl_takes_is_taken(user_module: str, returned: Any):
    tolerant = returning(user_module, returned)
    tolerant.reset(SEED)
    assert say(tolerant, "x").reward == 1.0
    tolerant.close()


def test_an_answer_may_hold_pictures(user_module: str, tmp_path: Path):
    red, clear = Image.new("RGB", (8, 6), "red"), Image.new("RGBA", (4, 3), (0, 0, 0, 0))
    red.save(tmp_path / "red.png")
    clear.save(buffer := BytesIO(), "PNG")
    blocks = [
        {"type": "text", "text": "Look: "},
        {"type": "image", "image": red},
        {"type": "image", "image": str(tmp_path / "red.png")},
        {"type": "text", "text": " and "},
        {"type": "image", "image": buffer.getvalue()},
    ]
    shown = returning(user_module, (False, blocks, 0.0, {}))
    shown.reset(SEED)
    observation = say(shown, "x").observation
    assert observation.text == "Look: <image><image> and <image>"
    assert [image.mode for image in observation.images] == ["RGB"] * 3
    assert observation.images[0].tobytes() == observation.images[1].tobytes() == red.tobytes()
    assert observation.images[2].size == (4, 3)
    assert observation.images[2].getextrema() == ((255, 255),) * 3  # on white
    shown.close()


def test_a_broken_picture_fails_the_episode(user_module: str):
    Image.effect_noise((64, 64), 80).save(buffer := BytesIO(), "PNG")
    blocks = [{"type": "image", "image": buffer.getvalue()[:2000]}]
    broken = returning(user_module, (False, blocks, 0.0, {}))
    broken.reset(SEED)
    with pytest.raises(EnvError, match=r"ReturningInteraction\.generate_response returned"):
        say(broken, "x")
    assert interaction(broken)._instance_dict == {}


def test_a_text_about_images_shows_none(user_module: str):
    told = "a <image>, a <ima<image>ge> and half a pair: \ud800"
    for returned in (told, [{"type": "text", "text": told}]):
        talking = returning(user_module, (False, returned, 0.0, {}))
        talking.reset(SEED)
        observation = say(talking, "my own <image>").observation
        assert observation == Observation("a (image), a <ima(image)ge> and half a pair: ?")
        talking.close()


def test_numbers_of_the_fourth_item_are_metrics(user_module: str):
    given = {
        "tries": 3, "right": True, "time s/µ": 0.5, "success": 5.0, "interaction_score": 9.0,
        "note": "text", "nan": math.nan, "list": [1], "none": None, "": 1, 7: 2.0, "x" * 200: 1,
        "huge": 10**400,
    }  # fmt: skip
    measured = returning(user_module, (False, "a", 0.25, given))
    measured.reset(SEED)
    assert say(measured, "x").metrics == {
        "tries": 3.0, "right": 1.0, "time_s": 0.5, "7": 2.0, "x" * 64: 1.0,
        "interaction_score": 0.25, "success": 0.0, "format_valid": 1.0,
    }  # fmt: skip
    measured.close()


# ------------------------------------------------------------------------------------------ rows


def test_a_row_without_a_name_is_gsm8ks_and_one_warning_says_so(
    user_module: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "_warned", type(registry._warned)())
    rows = [{"prompt": f"{n} = ?", "interaction_kwargs": {"n": n}} for n in range(40)]
    entries = [
        {"name": name, "class_name": f"{user_module}.{kind}", "config": {}}
        for name, kind in (("other", "StubbornInteraction"), ("gsm8k", "Ducks"))
    ]
    settings = {"interaction": entries}
    for _ in range(2):
        both = InteractionEnvironment(ListTasks(rows), settings)
        for index in range(3):
            both.reset(seed_of("train", index))
            assert say(both, "x").observation.text == "Quack."
    assert caplog.text.count("answered by 'gsm8k', as in verl") == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_name_that_is_not_known_fails_its_episode(user_module: str):
    rows = [{"prompt": f"{n} = ?", "interaction_kwargs": {"name": "it2"}} for n in range(40)]
    unknown = environment(f"{user_module}.Ducks", rows=rows)
    with pytest.raises(RowError, match=r"row \d+ names the interaction 'it2'; known are it\."):
        unknown.reset(SEED)
    entries = [{"name": name, "class_name": f"{user_module}.Ducks", "config": {}} for name in "ab"]
    nameless = InteractionEnvironment(
        ListTasks([{"prompt": f"{n}?", "answer": "y"} for n in range(40)]), {"interaction": entries}
    )
    with pytest.raises(RowError, match=r"row \d+ names no interaction; known are a, b\."):
        nameless.reset(SEED)


# ------------------------------------------------------------------------------- seeds and splits


def test_seeds_go_through_the_tasks_of_their_split(solver: InteractionEnvironment):
    tasks = solver.tasks
    for split in SPLITS:
        count = solver.start_count(split)
        assert count == tasks.count(split) > 0
        for index in (0, 1, count - 1, count, 3 * count + 1):
            wanted = tasks.task(split, index % count)
            assert solver.reset(seed_of(split, index)).text == wanted.messages[0]["content"]
    solver.close()


def test_the_initial_state_is_the_task_and_starts_no_interaction(solver: InteractionEnvironment):
    states = [solver.initial_state(seed_of("train", i)) for i in range(solver.tasks.count("train"))]
    assert len(set(states)) == len(states)
    held_out = {solver.initial_state(seed_of("test", i)) for i in range(9)}
    assert not held_out & set(states)
    assert not interaction(solver).log


def test_a_split_without_tasks_is_named(user_module: str):
    lone = environment(f"{user_module}.Ducks", rows=[{"prompt": "x", "answer": "y"}])
    empty: Split = next(split for split in SPLITS if lone.tasks.count(split) == 0)
    with pytest.raises(EnvError, match=f"the tasks have none for {empty}"):
        lone.reset(seed_of(empty, 0))


def test_episodes_replay_if_the_classes_or_the_setting_say_so(user_module: str):
    assert not environment(f"{user_module}.Ducks").replays
    assert environment(f"{user_module}.Ducks", replays=True).replays
    assert InteractionEnvironment(ListTasks(ROWS), Sure({})).replays
    assert not InteractionEnvironment(ListTasks(ROWS), Sure({}), replays=False).replays


class Sure(registry.BaseInteraction):
    replays = True


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_user_turns": 0}, "max_user_turns is 0"),
        ({"max_assistant_turns": -1}, "max_assistant_turns is -1"),
        ({"weights": []}, r"weights is \[\]"),
        ({"weights": [1.0, math.nan]}, "weights is"),
        ({"patience_s": 0.0}, "patience_s is 0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(
    user_module: str, settings: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        environment(f"{user_module}.Ducks", **settings)


def test_a_step_without_an_episode_is_refused(solver: InteractionEnvironment):
    with pytest.raises(EnvError, match="call reset"):
        say(solver, "x")
    solver.reset(SEED)
    say(solver, truth(solver, SEED))
    with pytest.raises(EnvError, match="call reset"):
        say(solver, "x")
