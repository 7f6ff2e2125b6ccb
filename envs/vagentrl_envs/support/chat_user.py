"""A customer that a chat model plays."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.resources import files

from vagentrl.chat import ChatModel, ask
from vagentrl.errors import ChatError, ConfigError
from vagentrl_envs.support.phone import ACTIONS, World, operate
from vagentrl_envs.support.talk import Talk, User, UserTurn
from vagentrl_envs.support.tasks import Task
from vagentrl_envs.support.understanding import understand

MOST_BRACKETS = 8
"""Most brackets in an answer: the interpreter's stack must not decide how deep is too deep."""


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
        patience_s: Seconds until an answer times out, including the time in the model's queue.
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
        reply = ask(
            self.model,
            self.prompt(task, world, talk),
            max_tokens=self.max_tokens,
            patience_s=self.patience_s,
            owner="ChatUser",
        )
        said = read_answer(reply.text)
        heard = understand(message)
        given = talk.given | frozenset(heard.topics)  # the model is taken to answer what is asked
        talk = replace(talk, told=talk.told | heard.told, given=given)
        if said.agrees and heard.offer is not None and heard.offer.priced:
            # The model may say yes to anything; only what the task's customer buys is bought.
            talk = replace(talk, agreed=talk.agreed | (task.accepts & {heard.offer.what}))
        world, did = _act(task, world, said.actions)
        shown = f" (The phone now shows: {world.screen()}.)" if did else ""
        return UserTurn(f"{said.message}{shown}", world, talk, did, said.hangs_up)

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
            history="\n".join(
                f"{'You' if who == 'customer' else 'Support'}: {text}" for who, text in talk.history
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
    """Read the JSON object in a chat model's answer.

    Raises:
        ChatError: When there is no such object.
    """
    body = text[text.find("{") : text.rfind("}") + 1]
    wrong = ChatError(f"the customer's answer is not the JSON object asked for: {text[:200]!r}")
    if sum(map(body.count, "{[")) > MOST_BRACKETS:
        raise wrong
    try:
        value = json.loads(body)
    except ValueError:
        raise wrong from None
    message, actions = value.get("message"), value.get("actions", [])
    flags = [value.get(name, False) for name in ("agrees", "hangs_up")]
    if not isinstance(message, str) or not isinstance(actions, list):
        raise wrong
    if not all(isinstance(one, str) for one in actions):
        raise wrong
    if not all(isinstance(flag, bool) for flag in flags):
        raise wrong
    return Answer(message.strip(), tuple(actions), *flags)


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
