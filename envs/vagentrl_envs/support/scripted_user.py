"""A customer that follows a script: the same messages always get the same answers."""

from __future__ import annotations

from dataclasses import replace

from vagentrl_envs.support.phone import ACTIONS, World, is_needless, operate
from vagentrl_envs.support.talk import Talk, User, UserTurn
from vagentrl_envs.support.tasks import NEEDLESS, Task
from vagentrl_envs.support.understanding import Heard, Offer, understand

GOODBYE = ("bye", "This leads nowhere. Goodbye.")
"""What a customer says before hanging up, in few words and in full."""


class ScriptedUser(User):
    """Understands key phrases and does what it is asked, as its persona does.

    Args:
        terse: Answer in as few words as possible, as a tiny model needs it.
    """

    def __init__(self, terse: bool = False) -> None:
        self.terse = terse

    def answer(self, task: Task, world: World, talk: Talk, message: str) -> UserTurn:
        heard = understand(message)
        if heard.overloaded or heard.nothing:
            confusion = talk.confusion + 1
            if confusion >= task.persona.patience:
                return UserTurn(
                    self._say(*GOODBYE), world, replace(talk, confusion=confusion), hung_up=True
                )
            text = self._say("what?", "I do not understand what you want me to do.")
            if heard.overloaded:
                text = self._say("too much", "These are too many numbers at once.")
            return UserTurn(text, world, replace(talk, confusion=confusion))
        talk = replace(talk, confusion=0).with_heard(heard, task)
        answers: list[str] = []
        for topic in heard.topics:
            text, given = self._tell(task, world, topic)
            answers.append(text)
            talk = replace(talk, given=talk.given | {given})
        if heard.offer is not None:
            text, talk = self._consider(task, talk, heard.offer)
            answers.append(text)
        if heard.unclear and not answers:
            answers.append(self._say("which?", "Which one do you mean? One at a time, please."))
        world, did, needless = self._obey(task, world, heard, answers)
        talk = replace(talk, needless=talk.needless + needless)
        if talk.needless > NEEDLESS:
            return UserTurn(self._say(*GOODBYE), world, talk, did, hung_up=True)
        if not answers:
            answers.append(self._listen(heard))
        return UserTurn(" ".join(answers), world, talk, did)

    def _say(self, terse: str, full: str) -> str:
        return terse if self.terse else full

    def _tell(self, task: Task, world: World, topic: str) -> tuple[str, str]:
        """The answer to a question, and what it gives away."""
        phone, screen = world.phone, world.screen()
        match topic:
            case "number":
                return self._say(world.number, f"My number is {world.number}."), "number"
            case "pin" if not task.knows_pin:
                return self._say("no pin", "I do not have the PIN."), "pin"
            case "pin":
                customer = world.database.customer(world.line.customer)
                pin = customer.pin if customer else ""
                return self._say(pin, f"The PIN is {pin}."), "pin"
            case "name":
                customer = world.database.customer(world.line.customer)
                name = customer.name if customer else ""
                return self._say(name, f"I am {name}."), "name"
            case "place":
                place = "abroad" if phone.abroad else "at home"
                return self._say(place, f"I am {place}."), "place"
            case "settings":
                settings = phone.settings()
                return self._say(
                    f"{settings}; {screen}", f"The settings are: {settings}. It shows: {screen}."
                ), "settings"
            case "screen":
                return self._say(screen, f"My phone shows: {screen}."), "screen"
            case "top-up":
                gb = next((what.split(":")[1] for what in task.accepts if "gb" in what), "no")
                return self._say(f"{gb} GB", f"I would take {gb} GB."), "top-up"
            case "wish":
                return task.wish, "wish"
            case "sim":
                fits = "loose" if phone.sim == "loose" else "in place"
                return self._say(f"sim {fits}", f"The SIM card looks {fits}."), "sim"
            case _:
                value = next(
                    part for part in phone.settings().split(", ") if part.startswith(topic)
                )
                return self._say(value, f"It says: {value}."), topic

    def _consider(self, task: Task, talk: Talk, offer: Offer) -> tuple[str, Talk]:
        """The answer to an offer; a yes binds only at the true price."""
        if offer.what in task.accepts:
            if offer.priced:
                talk = replace(talk, agreed=talk.agreed | {offer.what})
            return self._say("yes", "Yes, I agree."), talk
        return self._say("no", f"No, thank you. {task.wish}"), talk

    def _obey(
        self, task: Task, world: World, heard: Heard, answers: list[str]
    ) -> tuple[World, int, int]:
        """Carry out instructions, as many at once as the persona does; says so in `answers`.

        The numbers are how many were carried out, and how many of them were needless.
        """
        now = heard.commands[: task.persona.at_once]
        did = needless = 0
        for command in now:
            if command == "pay":
                world, text, paid = self._pay(world)
                did += paid
                answers.append(text)
                continue
            needless += is_needless(command, world.phone, task.goal.phone)
            world = world.with_phone(operate(world.phone, command))
            did += 1
            answers.append(self._say(f"did {command}", f"{ACTIONS[command].did}."))
        if any(command != "pay" for command in now):
            screen = world.screen()
            answers.append(self._say(f"; {screen}", f"Now it shows: {screen}."))
        if len(now) < len(heard.commands):
            answers.append(self._say("slowly", "One thing at a time, please."))
        return world, did, needless

    def _pay(self, world: World) -> tuple[World, str, int]:
        paid = world.pay()
        if paid is None:
            return world, self._say("no request", "I have no payment request."), 0
        return paid, self._say("paid", "I have paid it."), 1

    def _listen(self, heard: Heard) -> str:
        if "no" in heard.told:
            return self._say("ok", "What a pity, but I understand.")
        return self._say("ok", "All right.")
