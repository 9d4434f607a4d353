"""What makes no scenario, no settings of one, or no dataset of one, is a single clear error."""

import json
from textwrap import dedent

import pytest
from handmade import Rollouts
from stored_rows import typed_episode, typed_generations

from nip_base import importing
from nip_by_hand.agents import CodeValidationProtocolHandler
from nip_core.errors import DatasetError, RunConflictError, SettingsError
from nip_core.evaluation.episode_transcripts import _remarks
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Move, Turn
from nip_core.scenarios import make_scenario
from nip_core.scenarios.datasets import load_problems
from nip_core.session.prepare import plan_run, prepare

HEAD = """
from pathlib import Path
from nip_core.scenarios import PROVER, VERIFIER, Column, Scenario, ScenarioSettings, Words

WORDS = Words("an expert", "sum", "a sum is right", "It may be wrong.", "the sum is right", "it")

class Sums(Scenario):
    name = "sums"
    words = WORDS
"""


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """Settings of a run on a scenario with these lines in its class."""
    monkeypatch.chdir(tmp_path)

    def write(*lines, rows=None, **changes):
        (tmp_path / "sums.py").write_text(dedent(HEAD) + "".join(f"    {line}\n" for line in lines))
        if rows is not None:
            (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        agents = {"_default": {"model_provider": "SelfHosted", "model_name": "m"}}
        settings = {"run_name": "a", "dataset": "sums.jsonl", "agents": agents}
        return load_parameters({**settings, "scenario": "sums.py:Sums", **changes})

    return write


def rows(**changes):
    split = {"split": "train"}
    return [
        {"question": f"{n} + 1", "solution": "2", "y": n % 2, **split, **changes} for n in range(4)
    ]


def columns(*texts):
    return f"columns = ({', '.join(texts)},)"


HIDDEN, SOLUTION = 'Column("question", "Q", seen_by=())', 'Column("solution", "S")'
BOTH = f'Column("question", "Q"), {SOLUTION}'


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([columns(HIDDEN, SOLUTION)], ["Sums", "nobody sees question", "seen_by"]),
        (
            [
                columns(
                    *(f'Column("{n}", "X", seen_by=(PROVER,))' for n in ("question", "solution"))
                )
            ],
            ["Sums", "the verifier sees neither question nor solution"],
        ),
        ([columns(SOLUTION)], ["Sums.columns must begin with question and solution"]),
        ([columns(BOTH, SOLUTION)], ["name each column once", "question, solution, solution"]),
        (
            [columns(BOTH, 'Column("hint", "H", seen_by=("judge",))')],
            ["Sums", "hint is seen by judge", "prover and verifier"],
        ),
        (
            [columns(BOTH, 'Column("coin", "C", drawn=True)')],
            ["Sums", "coin", "draw"],
        ),
        (["words = None; del words"], ["Sums has no words"]),
        (["words = {'expert': 'a'}"], ["Sums.words must be Words", "{'expert': 'a'}"]),
        (["columns = ('question', 'solution')"], ["Sums.columns must be a tuple of Column"]),
        (["Settings = dict"], ["Sums.Settings must be a subclass of ScenarioSettings"]),
        (["split_by = 'passage'"], ["split_by must be a tuple", "('passage',)"]),
        ([columns(BOTH, 'Column("hint", "H", seen_by="prover")')], ["seen_by", "('prover',)"]),
        (
            [columns(f'Column("question", "Q", drawn=True), {SOLUTION}')],
            ["question can't be drawn"],
        ),
        ([columns(BOTH, 'Column("claim", "C")')], ["can't be called 'claim'"]),
        ([columns(BOTH, 'Column("my hint", "H")')], ["can't be called 'my hint'"]),
        (["def __init__(self, settings): pass"], ["super().__init__(settings)"]),
        (
            [
                "def __init__(self, settings):",
                "    super().__init__(settings)",
                f"    self.{columns(SOLUTION)}",
            ],
            ["Sums.columns must begin with question and solution"],
        ),
        (["1 / 0"], ["sums.py:Sums", "ZeroDivisionError: division by zero, line 10)"]),
        (["def __init__(self, settings): 1 / 0"], ["Sums.__init__ raised ZeroDivisionError"]),
        (["def check(self, protocol): 1 / 0"], ["check of scenario sums raised ZeroDivision"]),
        (
            ["template_directory = Path('absent')"],
            ["Sums.template_directory: absent is no directory", "Path(__file__).parent"],
        ),
        (["name = 3"], ["Sums.name must be a text (got 3)"]),
        (["generated = 'more'"], ["generated must be a tuple", "('more',)"]),
        (["bundled = ('more',)"], ["Sums.bundled must be paths by name"]),
        (["claims = {'they (match': 1}"], ["Sums.claims", "'they (match'", "expression"]),
        (["claims = {'they match': 2}"], ["Sums.claims must be decisions, 1 or 0, by pattern"]),
        (["template_directory = 'here'"], ["must be a pathlib.Path (got 'here')"]),
        (
            ["template_directory = Path('.')"],
            ["Sums.template_directory: . has no templates", "VERSION/PROTOCOL/AGENT.txt"],
        ),
    ],
)
def test_a_class_that_makes_no_game_is_refused(sums, lines, words):
    with pytest.raises(SettingsError) as refused:
        sums(*lines)
    assert all(word in str(refused.value) for word in ["scenario:", *words]), refused.value


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("sums.py:WORDS", ["'sums.py:WORDS'", "subclass of nip_core.scenarios.Scenario"]),
        ("sums.py:ScenarioSettings", ["subclass of nip_core.scenarios.Scenario"]),
        ("sums.py:Absent", ["it has no 'Absent'; it defines Sums"]),
        ("absent.py:Sums", ["No such file"]),
        ("sums", ["no scenario 'sums'", "code_validation", "path/to/file.py:Class"]),
        ("datasets", ["no scenario 'datasets'"]),
    ],
)
def test_a_name_that_is_no_scenario_is_refused(sums, scenario, words):
    with pytest.raises(SettingsError) as refused:
        sums(scenario=scenario)
    assert all(word in str(refused.value) for word in ["scenario:", *words]), refused.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"scenario_settings": {"size": 3}},
            ["scenario_settings.size", "unknown setting; there are system_prompt_version"],
        ),
        ({"scenario_settings": {"system_prompt_version": "v9"}}, ["system_prompt_version", "'v1'"]),
        ({"scenario_settings": [3]}, ["scenario_settings"]),
        (
            {"code_validation": {"apps_difficulty": "interview"}},
            ["code_validation: the scenario is sums.py:Sums", "scenario_settings"],
        ),
        (
            {"scenario": "code_validation", "scenario_settings": {"apps_difficulty": "interview"}},
            ["scenario_settings", "block code_validation"],
        ),
    ],
)
def test_settings_that_are_not_the_scenarios_are_refused(sums, changes, words):
    with pytest.raises(SettingsError) as refused:
        sums(**changes)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    ("lines", "rows", "words"),
    [
        ([], rows(y=1), ["sums.jsonl", "all 4 problems have y = 1", "make_balanced"]),
        ([], rows(y="right"), ["sums.jsonl, line 1", "y must be 1 (right) or 0 (wrong)"]),
        ([], rows(solution=" "), ["sums.jsonl, line 1", "solution must be a text"]),
        (
            [columns(BOTH, 'Column("hint", "H")')],
            rows(),
            ["sums.jsonl: no column hint", "needs question, solution, hint and y"],
        ),
        (
            ["def label(self, row): return int(row['solution']) / 0"],
            rows(y=None),
            [
                "sums.jsonl, line 1",
                "checker of scenario sums raised ZeroDivisionError",
                "sums.py, line 10); mend it, or leave the row out",
            ],
        ),
        *(
            (
                [f"def label(self, row): return {nonsense}"],
                rows(y=None),
                [
                    "sums.jsonl, line 1",
                    "checker of scenario sums must return 1 (right) or 0 (wrong)",
                ],
            )
            for nonsense in ("None", "'right'", "2", "[1]", "__import__('numpy').zeros(2)")
        ),
        (
            ["def label(self, row): return 1"],
            rows(),
            ["sums.jsonl, line 1", "y is 0, and the checker of scenario sums says 1"],
        ),
        (
            [],
            [*rows(), *rows(split="dev")][4:],
            ["sums.jsonl: no row has 'train' in the column split, which has dev", "rename"],
        ),
        *(
            ([f"def {function}(self, row, *_): {line}"], rows(), ["sums.jsonl, line 1", *words])
            for function, line, words in (
                (
                    "keeps",
                    "1 / 0",
                    [
                        "keeps of scenario sums raised ZeroDivisionError: ",
                        "sums.py, line 10); mend",
                    ],
                ),
                ("keeps", "return None", ["keeps of scenario sums must return True or False"]),
                ("expand", "1 / 0", ["expand of scenario sums raised ZeroDivisionError"]),
                ("expand", "yield 1 / 0", ["expand of scenario sums raised ZeroDivisionError"]),
                ("expand", "return None", ["expand of scenario sums must yield", "(got None)"]),
                ("expand", "yield 3", ["expand of scenario sums must yield dict", "(got 3)"]),
                ("expand", "return row", ["must yield dictionaries", "(got 'question')"]),
            )
        ),
        (
            ["def takes(self, columns): 1 / 0"],
            rows(),
            ["sums.jsonl: takes of scenario sums raised ZeroDivisionError"],
        ),
        (
            ["keeps = lambda *_: False", "def filters(self): 1 / 0"],
            rows(),
            ["filters of scenario sums raised ZeroDivisionError"],
        ),
        *(
            ([], rows(**{column: "a\ud800"}), [f"line 1: {column} has half a surrogate pair"])
            for column in ("question", "solution", "id", "question_id", "difficulty", "mutation")
        ),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(sums, lines, rows, words):
    scenario = make_scenario(sums(*lines, rows=rows))
    with pytest.raises(DatasetError) as refused:
        load_problems(scenario, "sums.jsonl", "train")
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("raise OSError('no disk')", ["more[train]", "sums", "OSError: no disk"]),
        ("yield {'question': 'q'}", ["more[train], row 0", "solution must be a text"]),
        ("yield 3", ["more[train], row 0", "3"]),
        ("return None", ["more[train]", "sums"]),
        (
            "yield {'question': chr(0xd800), 'solution': '2', 'y': 1}",
            ["more[train], row 0: question has half a surrogate pair ('\\ud800' at character 0)"],
        ),
    ],
)
def test_rows_that_a_scenario_can_not_make_are_an_error_that_names_it(sums, line, words):
    scenario = make_scenario(
        sums("generated = ('more',)", f"def generate(self, dataset, split): {line}", dataset="more")
    )
    with pytest.raises(DatasetError) as refused:
        load_problems(scenario, "more", "train")
    assert all(word in str(refused.value) for word in words), refused.value


def test_rows_without_an_end_are_an_error(sums, monkeypatch):
    monkeypatch.setattr("nip_core.scenarios.datasets._MOST_ROWS", 9)
    generate = "def generate(self, dataset, split): yield from __import__('itertools').repeat({})"
    scenario = make_scenario(sums("generated = ('more',)", generate, dataset="more"))
    with pytest.raises(DatasetError, match=r"more\[train\]: generate of .* more than 9 rows"):
        load_problems(scenario, "more", "train")


def test_agents_by_hand_refuse_columns_that_a_batch_does_not_carry(sums):
    parameters = sums(columns(BOTH, 'Column("hint", "H")'))
    with pytest.raises(SettingsError) as refused:
        CodeValidationProtocolHandler(parameters)
    assert "hint" in str(refused.value) and "scenario" in str(refused.value)


def test_agents_by_hand_play_what_question_and_solution_say(sums):
    assert CodeValidationProtocolHandler(sums()).game.scenario.name == "sums"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("def draw(self, problem, seed): return {}", ["draw must give a text for each of coin"]),
        ("def draw(self, problem, seed): return {'coin': 1}", ["(got {'coin': 1})"]),
        ("def draw(self, problem, seed): return None", ["(got None)"]),
        (
            "def draw(self, problem, seed): return {'coin': 'a', 'solution': 'b'}",
            ["and for nothing else"],
        ),
        ("def draw(self, problem, seed): 1 / 0", ["draw of", "raised ZeroDivisionError"]),
        (
            "def draw(self, problem, seed): return {'coin': chr(0xd800)}",
            ["draw returned half a surrogate pair ('\\ud800' at character 0) for coin"],
        ),
        (
            "def as_read(self, message, texts): return None",
            ["as_read must return a text (got None)"],
        ),
        ("def as_read(self, message, texts): 1 / 0", ["as_read of", "raised ZeroDivisionError"]),
        (
            "def as_read(self, message, texts): return chr(0xdfff)",
            ["as_read returned half a surrogate pair"],
        ),
        ("def seen(self, role): return None", ["seen must return a tuple of its columns"]),
        ("def show(self, texts, role): return None", ["show must return a text (got None)"]),
        ("def show(self, texts, role): return texts['none']", ["show of", "raised KeyError"]),
        ("def show(self, texts, role): return chr(0xd800)", ["show returned half a surrogate"]),
        ("def sentences(self, role, stance): return None", ["sentences must return texts"]),
        (
            "def sentences(self, role, stance): return {'claim': 3}",
            ["sentences must return a text"],
        ),
        ("def addition(self, role, protocol): return None", ["addition must return a text"]),
        ("def announce(self, *_): return None", ["announce must return a text (got None)"]),
        ("def announce(self, agent): return ''", ["announce of", "raised TypeError"]),
        ("def announce(self, *_): return chr(0xd800)", ["announce returned half a surrogate"]),
    ],
)
def test_what_a_scenario_makes_of_an_episode_is_checked(sums, method, words):
    parameters = sums(columns(BOTH, 'Column("coin", "C", drawn=True)'), *with_coin(method))
    said = Turn(1, "prover", "Answer: yes", Move({"main": "yes"}))
    with pytest.raises(SettingsError) as refused:
        Game(parameters).render("verifier", Situation("1 + 1", "2", None, 0), [said], 2)
    assert all(word in str(refused.value) for word in ["scenario sums", *words]), refused.value


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("None", ["draw_again must give texts for drawn columns that provers do not see (coin)"]),
        ("{'question': 'a'}", ["and for nothing else (got {'question': 'a'})"]),
        ("{'shown': 'a'}", ["and for nothing else (got {'shown': 'a'})"]),
        ("{'coin': 1}", ["draw_again must return a text for coin (got 1)"]),
        ("1 / 0", ["draw_again of", "raised ZeroDivisionError"]),
    ],
)
def test_what_is_drawn_again_is_what_provers_do_not_see(sums, made, words):
    coin = 'Column("coin", "C", drawn=True, seen_by=(VERIFIER,))'
    draw = "draw = lambda *_: {'coin': 'heads', 'shown': 'a challenge'}"
    again = f"def draw_again(self, texts, seed): return {made}"
    parameters = sums(columns(BOTH, coin, 'Column("shown", "S", drawn=True)'), draw, again)
    with pytest.raises(SettingsError) as refused:
        Game(parameters).drawn_again(Situation("1 + 1", "2", None, 0), 0)
    assert all(word in str(refused.value) for word in ["scenario sums", *words]), refused.value


def with_coin(method):
    return [method] if "draw" in method else [method, "draw = lambda *_: {'coin': 'heads'}"]


@pytest.mark.parametrize("function", ["draw", "show", "announce", "as_read", "remark"])
@pytest.mark.parametrize("begin", [plan_run, prepare])
def test_a_run_tries_a_scenarios_functions_on_each_split_before_anything_is_started(
    sums, function, begin
):
    method = f"def {function}(self, *given): assert '3 + 3' not in str(given); return ''"
    split = {"train": (0, 1), "validation": (4, 5), "test": (3,)}
    problems = [
        {"question": f"{n} + {n}", "solution": str(n), "y": y, "split": name, "id": f"{n} {y}"}
        for name, numbers in split.items()
        for n in numbers
        for y in (0, 1)
    ]
    lines = [columns(BOTH, 'Column("coin", "C", drawn=True)'), *with_coin(method)]
    if function == "draw":
        lines.append("draw = lambda self, p, s, d=draw: {'coin': d(self, p, s)}")
    parameters = sums(*lines, rows=problems, lm_server={"engine": "deterministic"})
    with pytest.raises(SettingsError, match=f"{function} of scenario sums raised AssertionError"):
        begin(parameters)


@pytest.mark.parametrize("begin", [plan_run, prepare])
def test_a_coin_that_is_another_one_at_each_call_is_refused_before_anything_is_started(sums, begin):
    tossed = "draw = lambda *_, t=iter(range(10**6)): {'coin': str(next(t))}"
    problems = [
        {"question": f"{n} + {n}", "solution": str(n + y), "y": 1 - y, "split": split}
        for n, split in enumerate(("train", "validation", "test"))
        for y in (0, 1)
    ]
    lines = [columns(BOTH, 'Column("coin", "C", drawn=True)'), tossed]
    parameters = sums(*lines, rows=problems, lm_server={"engine": "deterministic"})
    with pytest.raises(
        SettingsError, match=r"scenario sums: draw gave two texts for coin .* alone"
    ):
        begin(parameters)


def test_a_changed_scenario_is_refused_by_its_file_and_class_when_its_run_goes_on(sums, tmp_path):
    problems = [
        {"question": f"{n} + {y}", "solution": "2", "y": y, "split": split}
        for n, split in enumerate(("train", "validation", "test"))
        for y in (0, 1)
    ]
    settings = {"rows": problems, "lm_server": {"engine": "deterministic"}}
    begun = prepare(sums(**settings))
    begun.run.create_or_open(begun.identity)
    assert prepare(sums(**settings)).run.check_same(begun.identity) == {}
    importing._module_of_file.cache_clear()  # as another process has not read it yet
    with pytest.raises(RunConflictError) as refused:
        prepare(sums("split_by = ('question',)", **settings))
    said = str(refused.value)
    assert f"content of scenario: {tmp_path}/sums.py, in which class Sums stands, is not" in said
    assert "use these settings and the files as they were, another run_name, or --fork" in said


def test_a_template_of_an_agent_that_is_none_is_refused(sums, tmp_path):
    (tmp_path / "own/v1/nip").mkdir(parents=True)
    (tmp_path / "own/v1/nip/verfier.txt").write_text("$problem")
    with pytest.raises(SettingsError) as refused:
        Game(sums("template_directory = Path('own')"))
    said = str(refused.value)
    assert "own/v1/nip/verfier.txt is for no agent of nip, which are prover, verifier" in said


def test_a_split_by_that_rows_do_not_have_is_named(sums):
    problems = [{k: v for k, v in row.items() if k != "split"} for row in rows()]
    scenario = make_scenario(sums("split_by = ('passage',)", rows=problems))
    with pytest.raises(DatasetError, match=r"line 1: has no column passage, .* \(split_by\)"):
        load_problems(scenario, "sums.jsonl", "train")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 / 0", "remark of scenario sums raised ZeroDivisionError: division by zero ("),
        ("return chr(0xd800)", "scenario sums: remark returned half a surrogate pair ("),
        ("return 'read'", "read"),
    ],
)
def test_a_remark_that_fails_is_said_in_its_place(sums, line, words):
    game = Game(sums(f"def remark(self, message, texts): {line}"))
    played = Rollouts().add(0, 1, ["", "Answer: yes"], (1.0, 1.0))
    episode, row = typed_episode(played.episodes[0]), typed_generations(played.generations)[1]
    [(place, said)] = _remarks(episode, [row], game).items()
    assert place == (1, "prover", "Answer: yes")
    assert said.removeprefix("remark failed: ").startswith(words)
    said.encode()
