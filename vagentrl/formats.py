"""Reply formats: how the agent is instructed to reply, and how replies are parsed and written.

In five formats a reply is a sequence of tagged sections, and they differ in their sections. `parse`
is strict: every section must occur exactly once, in order and closed, with only white space
outside. `PlainText` has no tags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from vagentrl.errors import ConfigError, PartError, seen
from vagentrl.types import Reply, Representation, State

_ASKED = {
    "observation": "the state you see now",
    "prediction": "the state after your actions",
}
_REPRESENTED = {
    "natural": "in words",
    "structured": "as JSON",
    "symbolic": "as a grid of symbols",
}


class ReplyFormat:
    """Base of the formats; a subclass names its sections, or writes `instructions` and `parse`.

    The collector calls the format itself, which checks what `parse` returns.

    Args:
        action_separator: Separates the actions of one answer; None reads the whole answer as a
            single action (free text, code).
    """

    thinks: ClassVar[bool] = True
    """Whether there is a ``<think>`` section."""
    claims: ClassVar[tuple[str, ...]] = ()
    """The claims inside ``<think>``, in order: ``observation``, ``prediction`` or both."""
    state: Representation | None = None
    """The representation that claims are asked in; None without claims."""
    action_separator: str | None = ","

    def __init__(self, action_separator: str | None = ",") -> None:
        if action_separator is not None and not action_separator:
            raise ConfigError(
                "action_separator is empty; give a string, or null for one action per answer"
            )
        self.action_separator = action_separator

    @cached_property
    def _tags(self) -> list[str]:
        claims = [tag for claim in self.claims for tag in (f"<{claim}>", f"</{claim}>")]
        think = ["<think>", *claims, "</think>"] if self.thinks else []
        return [*think, "<answer>", "</answer>"]

    @cached_property
    def _splitter(self) -> re.Pattern[str]:
        return re.compile("(" + "|".join(self._tags) + ")")

    def instructions(self, actions_per_turn: int, state_schema: str | None = None) -> str:
        """Describe the format to the agent, for the system prompt.

        Args:
            actions_per_turn: Maximum number of actions in an answer.
            state_schema: Describes how to write a state in this format's ``state`` representation.
        """
        slots = [_ASKED[claim] for claim in self.claims]
        action = "your answer"
        if self.action_separator is not None:
            action = self.action_separator.join(["action"] * min(actions_per_turn, 2))
        lines = [
            "Reply in exactly this form, with nothing outside the tags:",
            self._fill(slots, "your reasoning", action),
        ]
        if actions_per_turn > 1 and self.action_separator is not None:
            lines.append(
                f"An answer holds up to {actions_per_turn} actions, "
                f"separated by {self.action_separator!r}."
            )
        if self.state is not None:
            schema = f": {state_schema}" if state_schema else "."
            lines.append(f"Write a state {_REPRESENTED[self.state]}{schema}")
        return "\n".join(lines)

    def __call__(self, text: str) -> Reply:
        """The reply that `parse` reads, checked."""
        reply = self.parse(text)
        if not isinstance(reply, Reply):
            wanted = "return a Reply; a malformed one has no actions and a `problem`"
            raise PartError.returned(self, "parse", reply, wanted)
        return reply

    def parse(self, text: str) -> Reply:
        """Read a reply; the first thing wrong with it, if any, is named in ``problem``.

        An empty thought is well formed: how much to think is the agent's affair.

        Args:
            text: What the agent wrote, without the token that ends its turn.
        """
        parts = self._splitter.split(text)
        texts, tags = parts[::2], parts[1::2]
        if tags != self._tags:
            return Reply(text, problem=self._tag_problem(tags))
        texts = [part.strip() for part in texts]
        sections = dict(zip(self._tags, texts[1:], strict=True))
        problem = self._text_problem(texts[0], sections)
        actions = self._split(sections["<answer>"])
        if problem is None and not actions:
            problem = "<answer> is empty"
        if problem is not None:
            return Reply(text, problem=problem)
        return Reply(
            text,
            actions=actions,
            thought=self._thought(sections) if self.thinks else None,
            observation_claim=sections.get("<observation>"),
            prediction_claim=sections.get("<prediction>"),
        )

    def write(
        self,
        actions: Sequence[str],
        *,
        observation: State | None = None,
        prediction: State | None = None,
        thought: str = "",
    ) -> str:
        """The well-formed reply that says this; what the format has no place for is left out."""
        if isinstance(actions, str):
            raise PartError(
                f"the actions of a reply are {seen(actions)}; give a tuple of strings, and let "
                "oracle() return one"
            )
        separator = self.action_separator
        if separator is None and len(actions) != 1:
            raise ConfigError(
                f"{len(actions)} actions for one answer, but action_separator is null: "
                "give exactly one action, or a separator"
            )
        given = {"observation": observation, "prediction": prediction}
        claims = [self._claim(name, given[name]) for name in self.claims]
        text = self._fill(claims, thought, (separator or "").join(actions))
        reply = self(text)
        if reply.problem is not None or reply.actions != tuple(a.strip() for a in actions):
            raise ConfigError(
                f"{type(self).__name__} cannot carry the actions {list(actions)}: "
                f"{reply.problem or 'an action is empty or contains the separator'}; "
                "actions, claims and thought must not contain the format's own tags"
            )
        return text

    def _fill(self, claims: Sequence[str], thought: str, answer: str) -> str:
        """Write the sections in order: observation, thought and prediction, then the answer."""
        answer = f"<answer>{answer}</answer>"
        if not self.thinks:
            return answer
        tagged = {n: f"<{n}>{c}</{n}>" for n, c in zip(self.claims, claims, strict=True)}
        seen, predicted = tagged.get("observation", ""), tagged.get("prediction", "")
        return f"<think>{seen}{thought}{predicted}</think>{answer}"

    def _claim(self, name: str, state: State | None) -> str:
        if state is None:
            raise ConfigError(
                f"{type(self).__name__} replies need {name}=State(...), the state to write down; "
                "an environment without state() can only be shown with NoThink or FreeThink"
            )
        match self.state:
            case "structured":
                return state.structured
            case "symbolic":
                return state.symbolic
            case _:
                return state.natural

    def _split(self, answer: str) -> tuple[str, ...]:
        if self.action_separator is None:
            return (answer,) if answer else ()
        return tuple(a for part in answer.split(self.action_separator) if (a := part.strip()))

    def _thought(self, sections: dict[str, str]) -> str:
        places = ["<think>", *(f"</{claim}>" for claim in self.claims)]
        return " ".join(part for place in places if (part := sections[place]))

    def _tag_problem(self, tags: list[str]) -> str:
        for opening in self._tags:
            if opening.startswith("</"):
                continue
            closing = "</" + opening[1:]
            if opening not in tags:
                return f"no {opening}"
            if closing not in tags:
                return f"{opening} is not closed"
            if tags.count(opening) > 1 or tags.count(closing) > 1:
                return f"more than one {opening}"
        # Each tag occurs exactly once, so only the order can be wrong.
        misplaced = next(tag for tag, want in zip(tags, self._tags, strict=True) if tag != want)
        return f"{misplaced} is out of place"

    def _text_problem(self, before: str, sections: dict[str, str]) -> str | None:
        if before:
            return f"text before {self._tags[0]}"
        if self.thinks and sections["</think>"]:
            return "text between </think> and <answer>"
        if sections["</answer>"]:
            return "text after </answer>"
        for claim in self.claims:
            if not sections[f"<{claim}>"]:
                return f"<{claim}> is empty"
        return None


class NoThink(ReplyFormat):
    """An answer without reasoning."""

    thinks = False


class FreeThink(ReplyFormat):
    """Free reasoning, then the answer."""


class PlainText(ReplyFormat):
    """Free text without tags: the whole reply is the one action. Only an empty one is malformed."""

    thinks = False

    def __init__(self) -> None:
        super().__init__(action_separator=None)

    def instructions(self, actions_per_turn: int, state_schema: str | None = None) -> str:
        return ""

    def parse(self, text: str) -> Reply:
        action = text.strip()
        return Reply(text, (action,)) if action else Reply(text, problem="the reply is empty")

    def _fill(self, claims: Sequence[str], thought: str, answer: str) -> str:
        return answer


class _ClaimFormat(ReplyFormat):
    """A format whose reasoning contains claims about the state.

    Args:
        state: The representation in which the agent must write claims.
        action_separator: Separates the actions of one answer; None reads the whole answer as a
            single action.
    """

    def __init__(
        self, state: Representation = "natural", action_separator: str | None = ","
    ) -> None:
        if state not in _REPRESENTED:
            raise ConfigError(f"state is {state!r}; give one of {', '.join(_REPRESENTED)}")
        super().__init__(action_separator)
        self.state = state


class Grounding(_ClaimFormat):
    """Reasoning that begins with a description of the current state, then the answer."""

    claims = ("observation",)


class TransitionModeling(_ClaimFormat):
    """Reasoning that ends with a prediction of the next state, then the answer."""

    claims = ("prediction",)


class WorldModeling(_ClaimFormat):
    """Reasoning between a description of the current and a prediction of the next state."""

    claims = ("observation", "prediction")
