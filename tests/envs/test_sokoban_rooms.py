from collections import deque

import pytest

from tests.processes import printed_in_every_process
from vagentrl.environment import Split, seed_of, split_of
from vagentrl.errors import EnvError
from vagentrl_envs.sokoban_rooms import Room, RoomSpec, room_at, solve
from vagentrl_envs.sokoban_solver import Solver

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))
SPECS = [
    RoomSpec((6, 6), 1, 0, 1, 10),
    RoomSpec((6, 6), 1, 3, 4, 12),
    RoomSpec((5, 8), 2, 0, 1, 14),
    RoomSpec((7, 7), 2, "walk", 2, 250),
    RoomSpec((6, 6), 3, 1, 1, 8),
]


def shortest(room: Room) -> int | None:
    """An independent breadth-first solver over sets of cells."""
    frontier = deque([(room.player, room.boxes, 0)])
    seen = {(room.player, room.boxes)}
    while frontier:
        (row, column), boxes, moves = frontier.popleft()
        if boxes == room.targets:
            return moves
        for down, right in STEPS:
            ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
            pushed = boxes
            if ahead in boxes:
                if beyond in boxes or beyond in room.walls:
                    continue
                pushed = boxes - {ahead} | {beyond}
            if ahead not in room.walls and (ahead, pushed) not in seen:
                seen.add((ahead, pushed))
                frontier.append((ahead, pushed, moves + 1))
    return None


def rooms(spec: RoomSpec, seeds: range) -> list[Room]:
    return [room_at(*spec.draw(seed)) for seed in seeds]


@pytest.mark.parametrize("spec", SPECS)
def test_shortest_solutions_are_exact_and_within_the_bounds(spec: RoomSpec):
    for seed in range(12):
        solver, position = spec.draw(seed)
        optimal = shortest(room_at(solver, position))
        assert optimal is not None
        assert solver.distance(position) == optimal
        assert spec.min_solution <= optimal <= spec.max_solution


@pytest.mark.parametrize("spec", SPECS)
def test_drawn_rooms_are_as_asked(spec: RoomSpec):
    for room in rooms(spec, range(12)):
        assert room.size == spec.size
        assert len(room.boxes) == len(room.targets) == spec.boxes
        assert room.player not in room.walls | room.boxes
        assert not room.walls & (room.boxes | room.targets)
        assert Room.parse(room.grid()) == room
        if isinstance(spec.inner_walls, int):
            rows, columns = spec.size
            assert len(room.walls) == 2 * (rows + columns) - 4 + spec.inner_walls


def test_distances_are_exact_wherever_play_leads():
    # the search back stops after 3 moves here, so most positions are searched forward
    start, position = solve(Room.parse("######\n#_X__#\n#P_#_#\n#__XO#\n#___O#\n######"))
    solver = Solver(start.layout, start.targets, depth=3)
    seen, frontier = {position}, [position]
    while frontier:
        frontier = [
            after for before in frontier for _, after in solver.moves(before) if after not in seen
        ]
        seen.update(frontier)
    assert len(seen) > 500
    for number, position in enumerate(sorted(seen)):
        if number % 20:
            continue
        optimal = shortest(room_at(solver, position))
        assert solver.distance(position) == optimal
        plan = solver.plan(position)
        assert (None if plan is None else len(plan)) == optimal
        for direction in plan or ():
            after = solver.move(position, direction)
            assert after is not None
            position = after
        assert plan is None or position[1] == solver.targets


def test_a_box_in_a_corner_is_hopeless():
    solver, position = solve(Room.parse("#####\n#X__#\n#_PO#\n#####"))
    assert solver.distance(position) is None
    assert solver.plan(position) is None


def test_no_room_is_in_two_splits():
    spec = RoomSpec((6, 6), 1, 0, 1, 10)  # few enough rooms that each split draws most of its own
    counts: dict[Split, int] = {"train": 3000, "validation": 600, "test": 600}
    drawn = {
        split: {room_at(*spec.draw(seed_of(split, index))).grid() for index in range(count)}
        for split, count in counts.items()
    }
    assert len(drawn["train"]) > 500
    assert len(drawn["validation"]) > 100 and len(drawn["test"]) > 100
    assert sum(map(len, drawn.values())) == len(set().union(*drawn.values()))


def test_a_room_is_of_its_seeds_split():
    for spec in SPECS:
        for seed in range(20):
            assert room_at(*spec.draw(seed)).split == split_of(seed)


def test_the_same_seed_gives_the_same_room_in_every_process():
    script = (
        "from vagentrl_envs.sokoban_rooms import RoomSpec, room_at\n"
        "for spec in (RoomSpec((6, 6), 1, 0, 1, 10), RoomSpec((7, 8), 2, 'walk', 1, 20)):\n"
        "    for seed in range(8): print(room_at(*spec.draw(seed)).grid())"
    )
    assert printed_in_every_process(script).count("\n") == 8 * (6 + 7)


def test_a_seed_keeps_its_room_for_ever():
    # if this fails, published results no longer mean the same rooms
    spec = RoomSpec((6, 6), 1, 0, 1, 10)
    assert [room_at(*spec.draw(seed)).grid() for seed in (0, 1, 3)] == [
        "######\n#_XO_#\n#P___#\n#____#\n#____#\n######",
        "######\n#____#\n#__O_#\n#_X__#\n#___P#\n######",
        "######\n#__P_#\n#___X#\n#___O#\n#____#\n######",
    ]


def test_the_room_of_a_seed_does_not_depend_on_what_was_drawn_before():
    spec = SPECS[3]
    forward = rooms(spec, range(10))
    assert [room_at(*spec.draw(seed)) for seed in reversed(range(10))] == forward[::-1]


def test_bounds_that_no_room_meets_are_named():
    # a corridor of three cells has only rooms that one push solves
    with pytest.raises(EnvError, match=r"size \(3, 5\).*shortest solution of 5 to 9 moves"):
        RoomSpec((3, 5), 1, 0, 5, 9).draw(0)
