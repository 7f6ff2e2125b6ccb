"""Every conversation is finalized exactly once, whatever happens to it."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.interactions.tables import (
    SEED,
    calls,
    environment,
    eventually,
    interaction,
    say,
    truth,
)
from tests.interactions.user_code import CODE, user_module
from vagentrl.environment import seed_of
from vagentrl.errors import EnvError
from vagentrl.interactions import InteractionEnvironment, Lifecycle, session
from vagentrl.rollout.workers import WorkerPool, reset, step

__all__ = ["user_module"]

METHODS = ("start_interaction", "generate_response", "calculate_score")


def play(env: InteractionEnvironment) -> None:
    """One turn that ends the episode, scored by `calculate_score` too."""
    env.reset(SEED)
    say(env, "no")


def faulty(user_module: str, fails: str, how: str, **settings: Any) -> InteractionEnvironment:
    settings = {"reward": "external", "max_assistant_turns": 1, **settings}
    return environment(f"{user_module}.FaultyInteraction", {"fails": fails, "how": how}, **settings)


def finalized_once(env: InteractionEnvironment) -> bool:
    """Whether each of the started conversations is finalized once, and none is left anywhere."""
    started = [instance for _, instance, *_ in calls(env, "start")]
    ended = [instance for _, instance in calls(env, "finalize")]
    return sorted(ended) == sorted(started) and not interaction(env)._instance_dict


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", r"failed: KeyError: 'no key in METHOD' \(.*user_code.*\.py:\d+\)"),
        ("exit", "failed: SystemExit: 3"),
        ("cancel", "cancelled itself"),
    ],
)
def test_a_method_that_fails_ends_the_episode(
    user_module: str, method: str, how: str, message: str
):
    env = faulty(user_module, method, how)
    # calculate_score is called by generate_response of this class, which is then named
    name = "generate_response" if method == "calculate_score" else method
    message = f"FaultyInteraction.{name} {message.replace('METHOD', method)}"
    with pytest.raises(EnvError, match=message):
        play(env)
    assert finalized_once(env)
    assert env.lifecycle is Lifecycle.COMPLETED
    assert not session._open
    env.close()
    assert finalized_once(env)


@pytest.mark.parametrize("method", METHODS[:2])
@pytest.mark.parametrize("how", ["hang", "stubborn"])
def test_a_method_that_takes_too_long_is_cancelled(user_module: str, method: str, how: str):
    env = faulty(user_module, method, how, patience_s=0.05)
    with pytest.raises(EnvError, match=rf"FaultyInteraction.{method} took more than 0.05 s|cancel"):
        play(env)
    assert finalized_once(env)


def test_a_failing_finalize_costs_a_warning_and_not_the_episode(
    user_module: str, caplog: pytest.LogCaptureFixture
):
    env = faulty(user_module, "finalize_interaction", "raise")
    for _ in range(3):
        env.reset(SEED)
        assert say(env, truth(env, SEED)).reward == 1.0
    assert finalized_once(env)
    assert caplog.text.count("finalize_interaction failed") == 1


def test_a_hanging_finalize_is_given_up(user_module: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "FINALIZE_S", 0.05)
    env = faulty(user_module, "finalize_interaction", "hang")
    play(env)
    assert finalized_once(env)


def test_a_reset_in_the_middle_and_close_finalize(user_module: str):
    env = environment(f"{user_module}.SolverInteraction")
    env.reset(SEED)
    env.reset(seed_of("train", 1))
    say(env, "no")
    env.reset(seed_of("train", 2))
    assert len(interaction(env)._instance_dict) == 1
    env.close()
    env.close()
    assert len(calls(env, "start")) == 3
    assert finalized_once(env)


def test_each_conversation_of_an_own_object_is_finalized(user_module: str):
    env = environment(f"{user_module}.SolverInteraction", instances="per_trajectory")
    env.reset(SEED)
    first = env._session
    assert first is not None
    say(env, truth(env, SEED))
    env.reset(SEED)
    second = env._session
    assert second is not None and second.interaction is not first.interaction
    env.close()
    logs: list[Any] = [one.interaction.log for one in (first, second)]  # pyright: ignore
    assert [[entry[0] for entry in log] for log in logs] == [
        ["start", "generate", "finalize"],
        ["start", "finalize"],
    ]


def test_a_cancelled_conversation_is_finalized(user_module: str):
    env = faulty(user_module, "generate_response", "hang", patience_s=3600.0)
    env.reset(SEED)
    current = env._session
    assert current is not None
    future = session.LOOP.submit(current.respond(env._messages))
    assert eventually(lambda: bool(calls(env, "generate")))
    future.cancel()
    assert eventually(lambda: finalized_once(env))
    env.close()  # the environment did not know
    assert finalized_once(env)


def test_finalizing_goes_on_when_its_caller_is_cancelled(user_module: str):
    env = environment(f"{user_module}.SolverInteraction")
    env.reset(SEED)
    current = env._session
    assert current is not None

    async def cancel_early() -> None:
        task = asyncio.ensure_future(current.finalize())
        await asyncio.sleep(0)
        task.cancel()

    session.LOOP.run(cancel_early())
    assert eventually(lambda: finalized_once(env))


def test_one_that_was_cancelled_before_it_began_starts_nothing(user_module: str):
    env = environment(f"{user_module}.SolverInteraction")
    late = session.Session(interaction(env), {"name": "it"}, 1.0)
    session.LOOP.run(late.finalize())
    with pytest.raises(EnvError, match="was closed before start_interaction"):
        session.LOOP.run(late.start())
    assert not interaction(env).log


def test_an_interrupt_while_an_answer_is_awaited_finalizes(
    user_module: str, monkeypatch: pytest.MonkeyPatch
):
    env = faulty(user_module, "generate_response", "hang", patience_s=3600.0)
    env.reset(SEED)
    submit = session.LOOP.submit

    def interrupted(work: Any) -> Any:
        future = submit(work)
        future.result = lambda timeout=None: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore
        monkeypatch.setattr(session.LOOP, "submit", submit)
        return future

    monkeypatch.setattr(session.LOOP, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        say(env, "no")
    assert eventually(lambda: finalized_once(env))


# ------------------------------------------------------------------------------- blocking the loop


def test_code_that_blocks_the_loop_is_named_once(
    user_module: str, caplog: pytest.LogCaptureFixture
):
    env = environment(f"{user_module}.BlockingInteraction", {"seconds": 0.5}, max_assistant_turns=1)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            play(env)
        assert eventually(lambda: "blocks the event loop" in caplog.text)
    assert caplog.text.count("blocks the event loop 'interactions' for more than 250 ms") == 1
    line = 1 + CODE.splitlines().index(
        '        time.sleep(self.config["seconds"])  # this line blocks'
    )
    assert f"{user_module}.py:{line} (in BlockingInteraction.generate_response)" in caplog.text
    assert finalized_once(env)


def test_many_short_steps_are_not_called_blocking(
    user_module: str, caplog: pytest.LogCaptureFixture
):
    async def work() -> None:
        time.sleep(0.002)

    async def sweep() -> None:
        await asyncio.gather(*(work() for _ in range(300)))  # one turn of the loop takes 0.6 s

    session.LOOP.run(sweep())
    assert "blocks the event loop" not in caplog.text


def test_a_blocked_loop_fails_the_others_with_its_place_and_finalizes_them_later(
    user_module: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vagentrl.interactions.environment.FINALIZE_S", 0.0)
    blocking = environment(
        f"{user_module}.BlockingInteraction", {"seconds": 1.0}, max_assistant_turns=1
    )
    other = environment(f"{user_module}.SolverInteraction", patience_s=0.2)
    other.reset(SEED)
    thread = threading.Thread(target=play, args=(blocking,))
    thread.start()
    assert eventually(lambda: "BlockingInteraction" in (session.LOOP.place() or ""))
    with pytest.raises(
        EnvError, match=r"gave no answer within 0.4 s; its event loop executes .*py"
    ):
        say(other, "no")
    thread.join()
    assert eventually(lambda: finalized_once(other) and finalized_once(blocking))


def test_code_that_stops_the_loop_or_the_program_stops_only_itself(user_module: str):
    async def stop() -> None:
        asyncio.get_running_loop().stop()

    async def leave() -> None:
        async def leave_later() -> None:
            raise SystemExit(1)

        task = asyncio.ensure_future(leave_later())
        await asyncio.wait([task])
        task.exception()

    session.LOOP.run(stop())
    session.LOOP.run(leave())
    env = environment(f"{user_module}.SolverInteraction")
    play(env)
    env.close()
    assert finalized_once(env)


# ------------------------------------------------------------------- workers and other processes


def make(user_module: str, **settings: Any) -> InteractionEnvironment:
    return faulty(user_module, "generate_response", "hang", **settings)


def test_a_worker_thread_whose_answer_is_not_awaited_any_longer_finalizes(user_module: str):
    env = make(user_module, patience_s=0.3)
    pool = WorkerPool(lambda: env, "it", timeout_s=0.1)

    async def episode() -> None:
        async with pool.reserve() as worker:
            await pool.run(worker, reset, SEED, 0)
            await pool.run(worker, step, env.format("no"))

    with pytest.raises(EnvError, match=r"did not answer step within 0\.1 s"):
        asyncio.run(episode())
    assert eventually(lambda: finalized_once(env))  # in its thread, once its patience has ended
    pool.close()


PROCESS = """
import asyncio
import sys
from functools import partial

sys.path.insert(0, "FOLDER")
from vagentrl.datasets import ListTasks
from vagentrl.interactions import InteractionEnvironment
from vagentrl.rollout.workers import WorkerPool, reset, step


def play():
    rows = [{"prompt": f"{n} = ?", "interaction_kwargs": {"n": n}} for n in range(40)]
    from vagentrl.interactions.registry import get_interaction_class
    given = get_interaction_class("user.Ducks")({}) if sys.argv[1] == "object" else "user.Ducks"
    factory = partial(InteractionEnvironment, ListTasks(rows), given)
    pool = WorkerPool(factory, "it", kind="process", size=2)

    async def episode(seed):
        async with pool.reserve() as worker:
            beginning = await pool.run(worker, reset, seed, 0)
            result, _ = await pool.run(worker, step, beginning.format("hello"))
            return result.observation.text

    async def episodes():
        return await asyncio.gather(*map(episode, (0, 2, 4)))

    print(asyncio.run(episodes()))
    pool.close()


if __name__ == "__main__":
    play()
"""


@pytest.mark.parametrize("given", ["object", "class"])
def test_worker_processes_play_a_class_that_imports_verl(tmp_path: Path, given: str):
    (tmp_path / "user.py").write_text(CODE)
    (tmp_path / "program.py").write_text(PROCESS.replace("FOLDER", str(tmp_path)))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), given], capture_output=True, text=True
    )
    assert done.stdout == "['Quack.', 'Quack.', 'Quack.']\n", done.stderr


def test_conversations_are_finalized_when_the_program_ends(tmp_path: Path):
    (tmp_path / "user.py").write_text(CODE.replace("del self", "print('forgotten'); del self"))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from vagentrl.datasets import ListTasks\n"
        "from vagentrl.interactions import InteractionEnvironment\n"
        "rows = [{'prompt': str(n), 'answer': str(n)} for n in range(40)]\n"
        "env = InteractionEnvironment(ListTasks(rows), 'user.SolverInteraction')\n"
        "env.reset(0)\n"
        "raise ValueError('the run fails')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "forgotten\n"
    assert "ValueError: the run fails" in done.stderr
