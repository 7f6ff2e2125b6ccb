import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.interactions.shipped.talk import ask, converse, talk
from vagentrl.errors import ConfigError, RowError
from vagentrl.interactions.code import CodeInteraction, interaction
from vagentrl.interactions.code.cases import Case, Suite, last_program, read_tests

ADDING = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4\n"}]


def code(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nThat is all."


def test_a_program_that_passes_all_tests_ends_the_conversation():
    wrong, right = code("print(3)"), code("print(sum(map(int, input().split())))")
    first, second = talk(CodeInteraction({}), wrong, right, tests=ADDING)
    assert (first[0], first[2]) == (False, 0.5)
    for told in ("passes 1 of 2", "Test 2 fails", "Input: 2 2", "Expected output: 4", "Output: 3"):
        assert told in first[1]
    assert second[:3] == (True, "Your program passes 2 of 2 tests.", 1.0)
    assert second[3] == {"solved": 1.0, "passed": 1.0, "timeouts": 0.0, "no_program": 0.0}


def test_all_or_nothing_scores_a_part_as_nothing():
    answer = ask(CodeInteraction({"scoring": "all"}), code("print(3)"), tests=ADDING)
    assert (answer[2], answer[3]["passed"]) == (0.0, 0.5)


def test_hidden_tests_are_not_shown():
    told = ask(CodeInteraction({"reveal_tests": False}), code("print(7)"), tests=ADDING)[1]
    assert "Test 1 fails" in told and "1 2" not in told and "Expected" not in told


def test_an_error_is_told_by_its_last_line():
    told = ask(CodeInteraction({}), code("print(1)\n1 / 0"), tests=ADDING)[1]
    assert "Test 1 fails: ZeroDivisionError: division by zero" in told
    assert "SyntaxError" in ask(CodeInteraction({}), code("def f(:"), tests=ADDING)[1]


def test_checks_are_judged_one_by_one():
    checks = ["assert f(1) == 2", "assert f(2) == 4, 'two'", "assert f(3) == 4"]
    answer = ask(CodeInteraction({}), code("def f(x): return x + 1"), tests=checks)
    assert answer[2] == pytest.approx(2 / 3)
    assert "Test 2 fails: AssertionError: two\nTest 2: assert f(2) == 4" in answer[1]


def test_a_program_that_loops_keeps_the_checks_before_it():
    program = "def f(x):\n    while x > 1: pass\n    return 2"
    checks = ["assert f(1) == 2", "assert f(2) == 3", "assert f(1) == 2"]
    answer = ask(CodeInteraction({"wall_s": 1.0}), code(program), tests=checks)
    assert answer[2] == pytest.approx(1 / 3) and answer[3]["timeouts"] == 1.0
    assert "Test 2 fails: the program ran for more than 1 s" in answer[1]


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        'import os\nfor fd in range(64):\n    try: os.write(fd, b\'{"failure": ""}\\n\')\n'
        "    except OSError: pass\nos._exit(0)",
        "import builtins; builtins.AssertionError = ZeroDivisionError",
        "def f(x): raise SystemExit(0)",
    ],
)
def test_ending_early_passes_no_check(program: str):
    assert ask(CodeInteraction({}), code(program), tests=["assert f(1) == 2"])[2] == 0.0


def test_a_check_that_exits_does_not_end_the_others():
    program = "def f(x): raise SystemExit(0)"
    checks = ["f(1)", "assert True"]
    answer = ask(CodeInteraction({}), code(program), tests=checks)
    assert answer[2] == 0.5 and "Test 1 fails: SystemExit: 0" in answer[1]


def test_a_check_program_passes_when_it_ends_without_an_error():
    check = "for n in range(3):\n    assert f(n) == n + 1"
    assert ask(CodeInteraction({}), code("def f(x): return x + 1"), tests=check)[2] == 1.0


def test_the_last_closed_block_of_python_counts():
    assert last_program(f"{code('a')}{code('b')}```python\nc") == "b"
    assert last_program("```\na\n```\n```cpp\nb\n```") == "a"
    assert last_program("  ```py\n  a\n  ```") == "  a"
    assert last_program("`a` and ```a```") is None


def test_a_reply_without_a_program_is_told_so():
    answer = ask(CodeInteraction({}), "print(3)", tests=ADDING)
    assert "no block of Python" in answer[1] and answer[3]["no_program"] == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        "x" * 10**6,
        "```python\n" * 100_000,
        "```\n" * 250_001,
        code("x" * 10**6),
        code("(" * 90_000),
        code("\x00"),
        code("print('\ud800<|im_end|>')"),
        code("-" * 90_000 + "1"),
    ],
)
def test_hostile_replies_score_nothing(reply: str):
    done, told, score, _ = ask(CodeInteraction({}), reply, tests=ADDING)
    assert (done, score) == (False, 0.0) and len(told) < 2000


def test_outputs_are_compared_without_white_space_at_the_ends():
    assert Case("", "1 2\n3\n").matches("1 2  \n3")
    assert not Case("", "1 2\n3\n").matches("1\n2\n3")
    assert not Case("", "1").matches(" 1")


@pytest.mark.parametrize(
    ("given", "tests"),
    [
        (ADDING[:1], Suite(cases=(Case("1 2\n", "3\n"),))),
        (json.dumps(ADDING[:1]), Suite(cases=(Case("1 2\n", "3\n"),))),
        ({"inputs": ["1 2\n"], "outputs": ["3\n"]}, Suite(cases=(Case("1 2\n", "3\n"),))),
        (np.array(ADDING[:1], dtype=object), Suite(cases=(Case("1 2\n", "3\n"),))),
        (["assert a"], Suite(checks=("assert a",))),
        ("[assert_it(x) for x in y]", Suite(checks=("[assert_it(x) for x in y]",))),
    ],
)
def test_tests_come_in_several_forms(given: Any, tests: Suite):
    assert read_tests(given) == tests


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"tests": []},
        {"tests": [{"input": "1"}]},
        {"tests": [{"input": 1, "output": 2}]},
        {"tests": {"inputs": ["1"], "outputs": []}},
        {"tests": [1]},
        {"tests": ADDING, "language": "cpp"},
    ],
)
def test_rows_without_tests_are_refused(row: dict):
    with pytest.raises(RowError):
        ask(CodeInteraction({}), code("1"), **row)


def test_the_time_for_all_tests_is_limited():
    settings = {"wall_s": 0.5, "budget_s": 0.6}
    tests = [{"input": "", "output": "1"}] * 50
    answer = ask(CodeInteraction(settings), code("while True: pass"), tests=tests)
    assert 1.0 <= answer[3]["timeouts"] <= 2.0 and answer[2] == 0.0


def test_conversations_at_once_do_not_mix():
    judge = CodeInteraction({"concurrency": 2})

    async def play() -> list[float]:
        answers = await asyncio.gather(
            *(
                converse(judge, [code(f"print({n % 3})")], tests=[{"input": "", "output": "1"}])
                for n in range(9)
            )
        )
        return [answer[0][2] for answer in answers]

    assert asyncio.run(play()) == [0.0, 1.0, 0.0] * 3
    assert judge._problems == {}


@pytest.mark.parametrize(
    "config",
    [
        {"python": "no-such-python"},
        {"wall_s": 0},
        {"memory_mb": -1},
        {"concurrency": 0},
        {"allow_unconfined": ["everything"]},
    ],
)
def test_settings_that_cannot_work_are_refused(config: dict):
    with pytest.raises(ConfigError):
        CodeInteraction(config)


def test_another_interpreter_may_be_named():
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None or subprocess.run([python, "-P", "-c", ""], stderr=-3).returncode != 0:
        pytest.skip("no other interpreter of Python 3.11 or newer")
    program = code("import sys, json; print(sys.prefix)")
    answer = ask(CodeInteraction({"python": python}), program, tests=[{"input": "", "output": ""}])
    assert f"Output: {Path(python).parents[1]}" in answer[1]


def test_what_a_machine_cannot_confine_is_refused_unless_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
):
    from vagentrl.interactions.code import probing

    monkeypatch.setattr(probing, "unconfinable", lambda python: {"files": "no Landlock"})
    with pytest.raises(ConfigError, match=r"files \(no Landlock\).*allow_unconfined: \[files\]"):
        CodeInteraction({})
    accepted = CodeInteraction({"allow_unconfined": ["files"]})
    assert accepted._sandbox.confined == ("network", "processes", "memory")
    assert interaction.CONFINEMENTS == ("network", "processes", "files", "memory")
    assert ask(accepted, code("print(3)"), tests=ADDING[:1])[2] == 1.0
