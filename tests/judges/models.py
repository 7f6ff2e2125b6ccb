"""Helpers for tests of judges: a scripted chat model, a scripted judge, and claims about a room."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping

from vagentrl.chat import ChatModel, ChatReply
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ChatError, JudgeError
from vagentrl.formats import Representation
from vagentrl.types import State
from vagentrl_envs.sokoban import Sokoban
from vagentrl_envs.sokoban_rooms import Room


class ScriptedChat(ChatModel):
    """Replies with a function of the prompt; fails if the function returns "fail".

    Attributes:
        prompts: Every prompt, in order of arrival.
    """

    def __init__(self, say: Callable[[str], str], name: str = "scripted") -> None:
        self.say = say
        self.name = name
        self.prompts: list[str] = []

    async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256) -> ChatReply:
        self.prompts.append(prompt)
        text = self.say(prompt)
        if text == "fail":
            raise ChatError("the script fails here")
        return ChatReply(text, prompt_tokens=len(prompt), reply_tokens=len(text))

    def identity(self) -> str:
        return self.name


def sokoban() -> Sokoban:
    """
    #####
    #___#     the player at (2, 3), the box at (2, 2), the target at (3, 2)
    #_XP#
    #_O_#
    #####
    """
    environment = Sokoban(size=5)
    environment.start_from(Room.parse("#####\n#___#\n#_XP#\n#_O_#\n#####"))
    return environment


def claim(
    text: str | None = None,
    representation: Representation = "natural",
    state: State | None = None,
    rubric: str = "",
) -> Claim:
    """Return a claim about the room of `sokoban`; without a text, the true claim."""
    state = state or sokoban().state()
    words = getattr(state, representation) if text is None else text
    return Claim("observation", words, representation, state, rubric)


class ScriptedJudge(Judge):
    """Fails, raises, exits or waits as the claim's text says; otherwise gives a score of 1.

    The claim carries the script, because the judge may run in another process.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.waiting = 0

    async def judge(self, claim: Claim) -> Verdict:
        self.asked += 1
        match claim.text:
            case "fail":
                raise JudgeError("it fails here")
            case "break":
                raise ValueError("it breaks here")
            case "break with a lock":
                raise RuntimeError(threading.Lock())
            case "die":
                os._exit(3)
            case "wait for twenty":
                self.waiting += 1
                while self.waiting < 20:
                    await asyncio.sleep(0.01)
        return Verdict(1.0, reason=str(os.getpid()))

    def metrics(self) -> Mapping[str, float]:
        return {"asked": self.asked}
