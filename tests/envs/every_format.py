"""All reply formats, each in all representations of the state."""

from typing import get_args

from vagentrl.formats import FreeThink, Grounding, NoThink, TransitionModeling, WorldModeling
from vagentrl.types import Representation

EVERY_FORMAT = [
    NoThink(),
    FreeThink(),
    *(
        claims(state)
        for claims in (Grounding, TransitionModeling, WorldModeling)
        for state in get_args(Representation)
    ),
]
