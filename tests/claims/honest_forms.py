"""Honest ways to say the same, and what each should earn.

The room: the player at row 2, column 3, the box at row 2, column 2, the target at row 3, column 2,
each counted from 0. A form tells about one object; the other two are told in the plainest way.
"""

from collections.abc import Iterator

from vagentrl.types import Representation

PLAYER, BOX, TARGET = (
    "The player is at row 2, column 3.",
    "The box is at row 2, column 2.",
    "The target is at row 3, column 2.",
)

OF_PLAYER = """
the player is at row 2, column 3
The Player is at Row 2, Column 3.
THE PLAYER IS AT ROW 2, COLUMN 3!
the player is at (2, 3)
the player is at (2,3)
the player is at [2, 3]
player: (2, 3)
Player: row 2, column 3
player = (2, 3)
- player: [2,3]
* Player at (2, 3)
**Player**: (2, 3)
I am at (2, 3)
I am standing at row 2, column 3
I'm at (2,3)
I\u2019m now at (2, 3)
the agent is at (2, 3)
the agent stands at row 2, column 3
the player stands in row 2 and column 3
the player sits in row 2, column 3
the player is located at (2, 3)
the player is currently located at row 2, column 3
the player is positioned at (2, 3)
the player is situated in row 2, column 3
the player's position is (2, 3)
the position of the player is (2, 3)
the player can be found at row 2, column 3
the player occupies the cell (2, 3)
the player occupies row 2, column 3
the player is in cell (2, 3)
the player is on the square (2, 3)
the player is on tile (2, 3)
the player is in column 3, row 2
column 3, row 2 is where the player is
at row two, column three is the player
at (2, 3) is the player
in row 2, column 3 there is the player
the player is at row two and column three
the player is at row=2, col=3
the player is at row: 2, column: 3
the player is in the third row and fourth column
the player is in the third row, fourth column
the player stands in the 3rd row and the 4th column
the player is in the third row from the top, in the fourth column from the left
the player is at position (2, 3)
the player is at coordinates (2, 3)
the player is at 2, 3
the player is now at (2, 3)
the player is still at (2, 3)
the player remains at (2, 3)
the player stays at (2, 3)
the player will be at (2, 3)
the player will then be at row 2, column 3
the player ends up at (2, 3)
the player moves from (2, 4) to (2, 3)
the player moved from row 2, column 4 to row 2, column 3
the player goes from (2, 4) to (2, 3)
the player moves to (2, 3)
the player was at (2, 4) and is now at (2, 3)
the player: (2, 4) -> (2, 3)
after this move the player is at (2, 3)
after moving left, the player will be at row 2, column 3
I see that the player is at (2, 3)
I can see that the player is at (2, 3)
I expect that the player is at (2, 3)
we know that the player is at row 2, column 3
it is clear that the player is at (2, 3)
it is true that the player is at (2, 3)
the map shows that the player is at (2, 3)
the grid shows the player at row 2, column 3
as far as I can see, the player is at (2, 3)
looking at the grid, the player is at (2, 3)
there is a player at (2, 3)
the player, at (2, 3)
the player (2, 3)
the player is at (2, 3), which is one step from the box
the player is at (2, 3), not (2, 4)
the player is at (2, 3), and no box is on the target yet
the player is at (2, 3), no box is on the target yet
the player is at (2, 3); no wall is in the way
the player is at (2, 3) but not on the target
the player is at (2, 3), while the rest is empty floor
the player is at (\uff12, \uff13)
the player is at ( 2 , 3 )
the player is at\u00a0row\u00a02,\u00a0column\u00a03
the player is at row 2, col 3
the player is at row 2 column 3
the player is at row number 2, column number 3
the player is at row 2 - that is the middle - and the player is at row 2, column 3
I think the player is at (2, 3)
so the player is at (2, 3)
I, the player, am at (2, 3)
the player has reached (2, 3)
the player is exactly at (2, 3)
the player is found at row 2, column 3 of the grid
you are at row 2, column 3
"""

OF_BOX = """
the box is at row 2, column 2
the crate is at (2, 2)
a box is at (2, 2)
there is a box at (2, 2)
there is one box at row 2, column 2
the box sits at (2, 2)
the box rests in row 2, column 2
the only box is at (2, 2)
box 1 is at (2, 2)
Box: [2, 2]
boxes: (2, 2)
the box is 1 to the left of the player
the box is one cell to the left of the player
the box is one to the left of the player
the box is 1 cell left of the player
the box is one step west of the player
the box is immediately to the left of the player
the box is just left of the player
the box is 1 to my left of me
the box is to the left of the player, at (2, 2)
1 to the left of the player is the box
one cell to the left of the player there is a box
the box is 1 above the target
the box is one cell above the target
the box is directly one cell above the target
the box is one row above the target
the box is one step north of the target
the box is one tile up from the target
the box is immediately above the target
the box is just above the goal
the box will be at (2, 2)
the box stays at (2, 2)
the box remains at row 2, column 2
the box is pushed to (2, 2)
I pushed the box to (2, 2)
the box moves from (2, 1) to (2, 2)
the box is not on the target; the box is at (2, 2)
the box is at (2, 2), not on the target
the box is at (2, 2), and it is not on a target
the box is in the third row, third column
the box lies at row 2, column 2
the box is placed at (2, 2)
the box can be seen at (2, 2)
the box is at position 2, 2
next to the wall, the box is at (2, 2)
at (2, 2) there is a box
in row 2, column 2 sits a box
the box is on the wrong side; the box is at (2, 2)
"""

OF_TARGET = """
the target is at row 3, column 2
the goal is at (3, 2)
a target is at (3, 2)
the target lies at row 3, column 2
the target is located at (3, 2)
the target is marked at (3, 2)
Target: (3, 2)
targets: [3, 2]
the target is 1 below and 1 to the left of the player
the target is 1 to the left and 1 below the player
the target is one down and one left of the player
the target is one row below and one column to the left of the player
the target is 1 south and 1 west of the player
the target is 1 below the box
the target is one cell below the box
the target is immediately below the box
the target is right below the box
the target is just below the crate
one cell below the box is the target
the target is one step south of the box
the target is one square under the box
the target is in the fourth row and the third column
the target is in column 2, row 3
the target remains at (3, 2)
the target is still empty and is at (3, 2)
the target does not move; the target is at (3, 2)
the target square is at (3, 2)
there is a target at row 3, column 2
at (3, 2) is the target
my goal is at (3, 2)
"""

STRUCTURED = """
{"player":[2,3],"boxes":[[2,2]],"targets":[[3,2]]}
{"player": [2, 3], "boxes": [[2, 2]], "targets": [[3, 2]]}
{"Player":[2,3],"Boxes":[[2,2]],"Targets":[[3,2]]}
{"PLAYER":[2,3],"BOXES":[[2,2]],"TARGETS":[[3,2]]}
{"player ":[2,3]," boxes":[[2,2]],"targets":[[3,2]]}
{"targets":[[3,2]],"boxes":[[2,2]],"player":[2,3]}
{"player":[2,3],"box":[[2,2]],"target":[[3,2]]}
{"player":[2,3],"boxes":[2,2],"targets":[3,2]}
{"player":[[2,3]],"boxes":[[2,2]],"targets":[[3,2]]}
{"player":[2.0,3.0],"boxes":[[2,2]],"targets":[[3,2]]}
{'player':[2,3],'boxes':[[2,2]],'targets':[[3,2]]}
{'player':(2,3),'boxes':[(2,2)],'targets':[(3,2)]}
{"player":(2,3),"boxes":((2,2),),"targets":((3,2),)}
{"player":[2,3],"boxes":[[2,2]],"targets":[[3,2]],}
{\u201cplayer\u201d:[2,3],\u201cboxes\u201d:[[2,2]],\u201ctargets\u201d:[[3,2]]}
{"player":{"row":2,"column":3},"boxes":[{"row":2,"column":2}],"targets":[{"row":3,"column":2}]}
{"player":{"row":2,"col":3},"boxes":[{"row":2,"col":2}],"targets":[{"row":3,"col":2}]}
{"player":{"Row":2,"Column":3},"boxes":[[2,2]],"targets":[[3,2]]}
```json~{"player":[2,3],"boxes":[[2,2]],"targets":[[3,2]]}~```
```~{"player":[2,3],"boxes":[[2,2]],"targets":[[3,2]]}~```
```JSON~{"Player": [2, 3],~ "Boxes": [[2, 2]],~ "Targets": [[3, 2]]}~```
`{"player":[2,3],"boxes":[[2,2]],"targets":[[3,2]]}`
The state is {"player":[2,3],"boxes":[[2,2]],"targets":[[3,2]]}
State: {"player":[2,3],"boxes":[[2,2]],"targets":[[3,2]]}.
I see:~```json~{"player":[2,3],"boxes":[[2,2]],"targets":[[3,2]]}~```
{~  "player": [2, 3],~  "boxes": [~    [2, 2]~  ],~  "targets": [[3, 2]]~}
{"player":[\uff12,\uff13],"boxes":[[2,2]],"targets":[[3,2]]}
"""

SYMBOLIC = """
#####~#___#~#_XP#~#_O_#~#####
  #####~  #___#~  #_XP#~  #_O_#~  #####
~#####~#___#~#_XP#~#_O_#~#####~
#####  ~#___#  ~#_XP#  ~#_O_#  ~#####  
# # # # #~# _ _ _ #~# _ X P #~# _ O _ #~# # # # #
```~#####~#___#~#_XP#~#_O_#~#####~```
```text~#####~#___#~#_XP#~#_O_#~#####~```
#####~~#___#~~#_XP#~~#_O_#~~#####
"""

WRAPPED = (
    "{all}",
    "Observation: {all}",
    "I see the following. {all}",
    "{all} That is all.",
    "{all} Nothing else is in the room.",
    "Here is what I see:\n{all}",
    "{all} I should push the box next.",
    "```\n{all}\n```",
    "{all} {all}",
)

PARTIAL: tuple[tuple[str, float], ...] = (
    (PLAYER, 1 / 3),
    (f"{PLAYER} {BOX}", 2 / 3),
    (f"{PLAYER} {BOX} The target is at row 1, column 1.", 2 / 3),
    (f"{PLAYER} Maybe the box is at (2, 2). {TARGET}", 2 / 3),
    (f"The player is not at (1, 1). {BOX} {TARGET}", 2 / 3),
    (f"{PLAYER} There is no box at (1, 1). {TARGET}", 2 / 3),
)
"""Honest claims that leave something out, are unsure or err, with the score of either judge."""


def lines(forms: str) -> list[str]:
    return [line.replace("~", "\n") for line in forms.split("\n") if line.strip()]


def forms() -> Iterator[tuple[Representation, str, float]]:
    """Yield the representation, the claim and the score that it should have."""
    for form in lines(OF_PLAYER):
        yield "natural", f"{form}\n{BOX} {TARGET}", 1.0
    for form in lines(OF_BOX):
        yield "natural", f"{PLAYER} {form}\n{TARGET}", 1.0
    for form in lines(OF_TARGET):
        yield "natural", f"{PLAYER} {BOX} {form}", 1.0
    for wrap in WRAPPED:
        yield "natural", wrap.format(all=f"{PLAYER} {BOX} {TARGET}"), 1.0
    for text, score in PARTIAL:
        yield "natural", text, score
    for form in lines(STRUCTURED):
        yield "structured", form, 1.0
    for form in lines(SYMBOLIC):
        yield "symbolic", form, 1.0
