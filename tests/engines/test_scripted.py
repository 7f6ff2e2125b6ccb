import asyncio

import pytest

from tests.engines.policies import STOP, VOCABULARY
from vagentrl.engines import ScriptedEngine
from vagentrl.engines.base import GenerationRequest, Sampling
from vagentrl.errors import EngineError


def encode(text: str) -> list[int]:
    return [*map(ord, text), STOP]


def scripted(script, **arguments) -> ScriptedEngine:
    engine = ScriptedEngine(script, encode, **arguments)
    engine.prepare(VOCABULARY)
    return engine


def ask(session: int = 0, max_tokens: int = 50) -> GenerationRequest:
    return GenerationRequest(session, (1, 2), (), Sampling(max_tokens=max_tokens), 0)


def test_every_session_starts_at_the_beginning_of_the_script():
    engine = scripted(["up", "down"])

    async def play() -> list:
        return [await engine.generate(ask(session)) for session in (7, 8, 7, 7)]

    texts = ["".join(map(chr, reply.reply_ids[:-1])) for reply in asyncio.run(play())]
    assert texts == ["up", "up", "down", "up"]
    assert [request.session for request in engine.requests] == [7, 8, 7, 7]
    assert engine.sampled_tokens == 3 + 3 + 5 + 3


def test_a_function_as_script_gets_the_request():
    engine = scripted(lambda request: f"{request.session}")
    reply = asyncio.run(engine.generate(ask(5)))
    assert reply.reply_ids == (ord("5"), STOP)
    assert reply.logprobs == (-1.0, -1.0)
    assert reply.finish == "stop"


def test_a_reply_without_an_end_of_turn_or_too_long_finishes_by_length():
    assert asyncio.run(scripted([[5, 6]]).generate(ask())).finish == "length"
    reply = asyncio.run(scripted(["long"]).generate(ask(max_tokens=2)))
    assert (len(reply.reply_ids), reply.finish) == (2, "length")


def test_an_exception_in_the_script_fails_the_request():
    engine = scripted([RuntimeError("no weights"), "fine"])
    with pytest.raises(EngineError, match="no weights"):
        asyncio.run(engine.generate(ask()))
    assert asyncio.run(engine.generate(ask())).finish == "stop"


def test_a_released_session_starts_at_the_beginning_again():
    engine = scripted(["up", "down"])
    first = asyncio.run(engine.generate(ask()))
    engine.release(0)
    assert asyncio.run(engine.generate(ask())) == first
    assert engine.released == [0]


def test_delays_of_concurrent_requests_overlap():
    engine = scripted(["up"], delay_s=lambda request: 0.2 * (2 - request.session))
    ended: list[int] = []

    async def play(session: int) -> None:
        await engine.generate(ask(session))
        ended.append(session)

    async def play_all() -> None:
        await asyncio.gather(*(play(session) for session in range(3)))

    asyncio.run(play_all())
    assert ended == [2, 1, 0]
