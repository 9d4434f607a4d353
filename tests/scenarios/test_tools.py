"""What each game's tool gives a verifier, whatever it writes."""

import pytest

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.parameters.stored import complete_settings
from nip_core.scenarios.checked import use_tool
from nip_core.scenarios.datasets import load_problems
from nip_core.session.origin import check_game
from nip_games.running import run_solution

GAMES = {
    "arithmetic": ("chains", {}),
    "chain": ("chains", {"interaction_protocol": "solo_verifier"}),
    "reading": ("passages", {}),
    "code_validation": ("problems", {}),
    "solutions": ("functions", {"interaction_protocol": "adp"}),
}
ODD = ["", "0", "-1", "999999999999", "abc", "1; import os", "⑨", "x" * 10_000, "[" * 5000]
FUNCTION = """def add(a, b=1):
    if a == "die":
        raise KeyError(b)
    if a == "spin":
        while True:
            pass
    return "x" * 50_000 if a == "long" else a + b
"""


def settings(scenario, **more):
    dataset, changes = GAMES.get(scenario, ("x", {}))
    return load_parameters(
        {
            "run_name": "a",
            "dataset": dataset,
            "scenario": scenario,
            "agents": {"_default": {"use_dummy_api": True}},
            **changes,
            **more,
        }
    )


@pytest.mark.parametrize("scenario", GAMES)
async def test_whatever_is_asked_a_text_comes_back(scenario):
    game = Game(settings(scenario, tool={"per_turn": 1}))
    problem = load_problems(game.scenario, game.parameters.dataset, "test")[0]
    texts = {"solution": FUNCTION, **problem.texts} if scenario == "solutions" else problem.texts
    for argument in ODD:
        assert isinstance(await use_tool(game.scenario, argument, texts), str)


async def test_a_look_shows_one_place():
    sums = {
        "question": "Start with 4. Add 3. Add 2.",
        "solution": "1: 4 + 3 = 8\n2: 8 + 1 = 9",
    }
    chain = {"question": "Start with 48. Calculate modulo 97.\n1: add 7\n2: add 3"}
    passage = {"passage": 'He said "no." She left!\n\nThen it rained'}
    shown = {
        "arithmetic": ("step 2", sums, "2: 8 + 2 = 10"),
        "chain": ("(1)", chain, "1: add 7"),
        "reading": ("2", passage, "She left!"),
    }
    for scenario, (argument, texts, result) in shown.items():
        game = Game(settings(scenario, tool={"per_turn": 1}))
        assert await use_tool(game.scenario, argument, texts) == result


@pytest.mark.parametrize(
    ("solution", "argument", "result"),
    [
        (FUNCTION, "add(2, b=3)", "5"),
        (FUNCTION, "2, 3", "5"),
        (FUNCTION, "add('die', 7)", "KeyError: 7"),
        (FUNCTION, "add('spin')", "it did not end within 5 s"),
        ("n = int(input())\nprint(n * 2)", "21", "42"),
        ("n = int(input())\nprint(n * 2)", "one", "ValueError: invalid literal"),
        ("import sys\ndef f(a):\n    sys.exit(3)", "f(1)", "SystemExit: 3"),
        ("def f(a):\n    import socket\n    return socket.socket()", "f(1)", "OSError"),
        ("def f(a):\n    open('/usr/x', 'w')", "f(1)", ("OSError", "PermissionError")),
        ("def f(input):\n    return input * 2", "f(2)", "4"),
        ("f = lambda a: a + 1", "2", "3"),
        ("import sys\nfor line in open(0):\n    print(len(line))", "a b", "3"),
        ("class A:\n    pass", "A()", "the solution has no function to call"),
        ("def f(a:\n    pass", "f(1)", "the solution is no Python: SyntaxError"),
    ],
)
async def test_a_solution_is_run_on_values_in_the_sandbox(solution, argument, result):
    game = Game(settings("code_validation", tool={"per_turn": 1}))
    text = await use_tool(game.scenario, argument, {"solution": solution})
    assert text.startswith(result), text


@pytest.mark.parametrize(
    "argument",
    [
        "__import__('os')",
        "add(__import__('os'))",
        "add(open('x'))",
        "other(1)",
        "add(1",
        "add(**{})",
    ],
)
async def test_what_is_no_input_is_not_run(argument):
    with pytest.raises(ValueError, match=r"write a call of add with values"):
        await run_solution(FUNCTION, argument)


async def test_a_long_result_is_cut_and_says_so():
    game = Game(settings("code_validation", tool={"per_turn": 1}))
    result = game.tools["verifier"].show_result(await run_solution(FUNCTION, "add('long')"))
    assert len(result) < 2_100 and result.endswith("(cut off; 50,002 characters)")


@pytest.mark.parametrize(
    ("scenario", "more", "words"),
    [
        ("bags", {"tool": {"per_turn": 1}}, "tool.per_turn: scenario bags has no tool"),
        ("arithmetic", {"tool": {"price": 1}}, "with 0 there is no tool"),
        (
            "arithmetic",
            {"tool": {"per_turn": 1}, "protocol_common": {"zero_knowledge": True}},
            "not in zero-knowledge games",
        ),
    ],
)
def test_settings_without_a_tool_are_refused(scenario, more, words):
    with pytest.raises(ValueError, match=words):
        settings(scenario, **more)


@pytest.mark.parametrize("tool", [None, {"per_turn": 1}, {"per_turn": 3, "price": 0.2}])
def test_an_attack_plays_with_the_tool_of_the_run_that_it_attacks(tool):
    more = {} if tool is None else {"tool": tool}
    in_sweep = settings("arithmetic", **more).to_dict()
    on_record = complete_settings(in_sweep)
    attack = {"run": "attacked", "by": "best-of-n"}
    for attacked in (in_sweep, on_record):
        check_game(settings("arithmetic", attack=attack, **more), attacked)
    with pytest.raises(SettingsError, match="tool: an attack plays the game of the run"):
        check_game(settings("arithmetic", attack=attack, tool={"per_turn": 2}), on_record)
