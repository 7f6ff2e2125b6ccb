"""Episodes that a person plays, or plays on from a turn of a stored one."""

from vagentrl.play.game import Game, GameStart
from vagentrl.play.store import PERSON, GameStore

__all__ = ["PERSON", "Game", "GameStart", "GameStore"]
