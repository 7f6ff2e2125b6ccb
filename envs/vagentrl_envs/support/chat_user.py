"""A customer that a chat model plays."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from vagentrl.chat import ChatModel, ask, without_thoughts
from vagentrl.errors import ChatError, ConfigError
from vagentrl_envs.support.phone import ACTIONS, World, operate
from vagentrl_envs.support.talk import Talk, User, UserTurn
from vagentrl_envs.support.tasks import Task
from vagentrl_envs.support.understanding import understand
from vagentrl_envs.text_actions import readable

TRIES = 3
"""Answers that are asked for until one can be read."""
LONGEST_ANSWER = 10_000
"""Characters of a chat model's answer that are read, without its thoughts."""
LONGEST_MESSAGE = 600
"""Characters of the customer's message that the agent sees."""
MOST_BRACKETS = 8
"""Most brackets in a list: the interpreter's stack must not decide how deep is too deep."""
AGAIN = (
    "\n\nYour last answer could not be read. Answer with the JSON object alone, with the keys "
    '"actions", "agrees", "hangs_up" and "message".'
)

_STRING = r'"(?:[^"\\]|\\.)*"'
_FLAT_OBJECT = re.compile(rf'\{{(?:[^{{}}"]|{_STRING})*\}}', re.DOTALL)
_FLAGS = {"true": True, "yes": True, "false": False, "no": False, "none": False, "": False}


class ChatUser(User):
    """Asks a chat model what the customer says and does.

    The model cannot invent a telephone: it names actions of the list that it is given, the
    environment carries them out, and what the screen shows afterwards is added to its words. What
    the customer was told, and which offer was accepted at its true price, is found in the agent's
    message by the rules of the scripted customer.

    Args:
        model: The chat model. It may answer differently each time, so episodes with it cannot be
            played again.
        max_tokens: Maximum length of an answer in tokens.
        patience_s: Seconds until an answer times out, including the time in the model's queue and
            for asking again when the answer cannot be read.
    """

    def __init__(self, model: ChatModel, max_tokens: int = 300, patience_s: float = 300.0) -> None:
        if max_tokens < 1:
            raise ConfigError(f"ChatUser.max_tokens is {max_tokens}; give 1 or more")
        if not patience_s > 0:
            raise ConfigError(f"ChatUser.patience_s is {patience_s}; give more than 0")
        self.model = model
        self.max_tokens = max_tokens
        self.patience_s = patience_s
        self._template = (files("vagentrl_envs.support") / "customer.txt").read_text("utf-8")

    @property
    def replays(self) -> bool:
        return False

    @property
    def waits_s(self) -> float:
        return self.patience_s

    def answer(self, task: Task, world: World, talk: Talk, message: str) -> UserTurn:
        said = self._ask(self.prompt(task, world, talk))
        heard = understand(message)
        given = talk.given | frozenset(heard.topics)  # the model is taken to answer what is asked
        talk = replace(talk, given=given).with_heard(heard, task)
        if said.agrees and heard.offer is not None and heard.offer.priced:
            # The model may say yes to anything; only what the task's customer buys is bought.
            talk = replace(talk, agreed=talk.agreed | (task.accepts & {heard.offer.what}))
        world, did = _act(task, world, said.actions)
        shown = f" (The phone now shows: {world.screen()}.)" if did else ""
        return UserTurn(f"{said.message}{shown}", world, talk, did, said.hangs_up)

    def _ask(self, prompt: str) -> Answer:
        """Ask the model until its answer can be read, at most `TRIES` times.

        Raises:
            ChatError: When no answer can be read, or none comes in time.
        """
        deadline = time.monotonic() + self.patience_s
        left_s, again, problem = self.patience_s, "", None
        for _ in range(TRIES):
            reply = ask(
                self.model,
                prompt + again,
                max_tokens=self.max_tokens,
                patience_s=left_s,
                owner="ChatUser",
            )
            try:
                return read_answer(reply.text)
            except ChatError as error:
                left_s, again, problem = max(deadline - time.monotonic(), 0.0), AGAIN, error
        raise ChatError(
            f"{problem} ({TRIES} answers were read). If they are cut off, raise "
            "ChatUser.max_tokens; otherwise choose a model that follows instructions better"
        ) from problem

    def prompt(self, task: Task, world: World, talk: Talk) -> str:
        """The prompt for an answer."""
        customer = world.database.customer(world.line.customer)
        knowledge = f"your phone number is {world.number}"
        if customer is not None:
            knowledge += f", your name is {customer.name}"
            knowledge += f", your PIN is {customer.pin}" if task.knows_pin else ""
        if not task.knows_pin:
            knowledge += "; you do not have the PIN"
        phone = world.phone
        return self._template.format(
            about=task.persona.about,
            wish=task.wish,
            knowledge=knowledge,
            phone=f"{phone.settings()}, SIM card {phone.sim}",
            screen=world.screen(),
            place="You are abroad." if phone.abroad else "You are at home.",
            accepts=", ".join(sorted(task.accepts)).replace(":", " ") or "nothing",
            at_once=task.persona.at_once,
            commands=", ".join([*ACTIONS, "pay"]),
            # On one line each, so that no message can contain another one.
            history="\n".join(
                f"{'You' if who == 'customer' else 'Support'}: {readable(text)}"
                for who, text in talk.history
                if who != "tool"
            ),
        )


@dataclass(frozen=True)
class Answer:
    """An answer of the chat model, as `customer.txt` asks for it."""

    message: str
    actions: tuple[str, ...]
    agrees: bool
    hangs_up: bool


def read_answer(text: str) -> Answer:
    """Read the last JSON object with a message in a chat model's answer.

    Thoughts, other text and braces around it do not matter, and neither do small liberties that
    leave no doubt, such as ``null`` for an empty list or ``"yes"`` for ``true``.

    Raises:
        ChatError: When there is no such object.
    """
    found = _FLAT_OBJECT.findall(without_thoughts(text)[:LONGEST_ANSWER])
    for body in reversed(found):
        if (answer := _read_object(body)) is not None:
            return answer
    raise ChatError(f"the customer's answer is not the JSON object asked for: {text[:200]!r}")


def _read_object(body: str) -> Answer | None:
    if re.sub(_STRING, "", body, flags=re.DOTALL).count("[") > MOST_BRACKETS:
        return None
    try:
        value = json.loads(body, strict=False)
    except ValueError:
        return None
    message, actions = value.get("message"), value.get("actions") or []
    actions = [actions] if isinstance(actions, str) else actions
    flags = [_flag(value.get(name)) for name in ("agrees", "hangs_up")]
    if not isinstance(message, str) or not isinstance(actions, list):
        return None
    if not all(isinstance(one, str) for one in actions):
        return None
    agrees, hangs_up = flags
    if agrees is None or hangs_up is None or not (message.strip() or actions or hangs_up):
        return None
    actions = tuple(" ".join(one.casefold().split()) for one in actions)
    return Answer(readable(message)[:LONGEST_MESSAGE], actions, agrees, hangs_up)


def _flag(value: Any) -> bool | None:
    """The truth value that is meant; None if it is none."""
    return _FLAGS.get(str(value).strip().casefold())


def _act(task: Task, world: World, actions: tuple[str, ...]) -> tuple[World, int]:
    """Carry out the actions that exist, as many as the persona does at once."""
    did = 0
    for action in actions:
        if did == task.persona.at_once:
            break
        if action == "pay":
            paid = world.pay()
            world, did = (world, did) if paid is None else (paid, did + 1)
        elif action in ACTIONS:
            world, did = world.with_phone(operate(world.phone, action)), did + 1
    return world, did
