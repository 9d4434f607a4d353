"""judge.yaml: what it takes, and the line that each fault gets."""

from pathlib import Path

import pytest

from nip_core.errors import SettingsError
from nip_judges.settings.judge_file import MOST_DATA_BYTES, load_judge_file

PROMPT = 'Q: {question}\nA: {response}\nKey: {reference}\nSay {"result": 1} or \\boxed{x}.\n'
YAML = """\
judge:
  prompt: grader.txt
  model_name: a-model
  accept: "GRADE: C"
  reject: "GRADE: I"
data:
  file: graded.jsonl
  question: input
  response: output
  reference: target
  right: human_label
check: exact
no_verdict: reject
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grader.txt").write_text(PROMPT)
    (tmp_path / "graded.jsonl").write_text("{}\n")
    (tmp_path / "my_judge.py").write_text("def judge(question, response):\n    return True\n")
    (tmp_path / "label.json").write_text('{"type": "label_model", "model": "m"}')
    (tmp_path / "string.json").write_text('{"type": "string_check"}')
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "no_response.txt").write_text("{question} {answer}")
    (tmp_path / "pair.txt").write_text("{response_a} {response_b}")
    return tmp_path


def load(text, *overrides):
    Path("judge.yaml").write_text(text)
    return load_judge_file("judge.yaml", overrides)


def swap(old, new):
    assert old in YAML
    return YAML.replace(old, new)


def without(key):
    return "".join(line for line in YAML.splitlines(True) if f"{key}:" not in line)


FUNCTION = "judge:\n  function: my_judge.py:judge\ndata:\n  file: graded.jsonl\n"

FAULTS = [
    # Keys and blocks.
    (swap("accept", "acept"), 'line 4: unknown key "acept" in judge; did you mean "accept"?'),
    (swap("check", "chek"), 'line 12: unknown key "chek"; did you mean "check"?'),
    (
        YAML + "prompt: a.txt\n",
        'line 14: unknown key "prompt"; it stands in the block judge',
    ),
    (
        swap("  right:", "  labels_by: people\n  right:"),
        'line 11: unknown key "labels_by" in data; it stands at the left, in no block',
    ),
    ("judge:\n  prompt: grader.txt\n", "data is missing: name the graded rows by file"),
    ("", "a mapping with the blocks judge and data is needed, got nothing; nip init"),
    ("judge: [\n", "is not YAML"),
    ("judge: yes\ndata: {file: graded.jsonl}\n", "line 1: judge is a block of settings"),
    (swap("no_verdict: reject", "no_verdict: rejct"), "line 13: no_verdict is 'reject', 'accept'"),
    # Which judge.
    (
        swap("  model_name", "  function: my_judge.py:judge\n  model_name"),
        "line 3: judge has prompt and function: one of them judges; leave the other out",
    ),
    (
        without("prompt"),
        "line 1: judge has none of prompt, function, grader and reward_model; name one",
    ),
    (without("model_name"), "line 1: judge.model_name is missing: the name of the model"),
    (
        FUNCTION.replace("data:", "  model_name: a\ndata:"),
        "line 3: judge.model_name: no model is asked by these settings; leave it out",
    ),
    (
        FUNCTION.replace("data:", "  accept: A\n  fill: {a: b}\ndata:"),
        "line 4: judge.fill is of a prompt, not of a function; leave it out",
    ),
    (FUNCTION.replace("my_judge.py", "my_jugde.py"), 'did you mean "my_judge.py"?'),
    (FUNCTION.replace("my_judge.py:", "no.package:"), "there is no module no.package here"),
    (FUNCTION.replace(":judge\n", "\n"), "line 2: judge.function: 'my_judge.py' names no function"),
    (
        swap("  model_name", "  model_provider: OpenAi\n  model_name"),
        "line 3: judge: there is no provider 'OpenAi'; did you mean 'OpenAI'?",
    ),
    (
        swap("  model_name", "  model_provider: SelfHosted\n  model_name"),
        "line 3: judge.base_url is missing: the address of the SelfHosted server",
    ),
    (
        swap("  model_name", "  temperature: 1\n  top_p: 0.5\n  model_name"),
        "line 3: judge: set temperature or top_p, not both",
    ),
    (
        swap("  model_name", "  key: sk-proj-123\n  model_name"),
        "line 3: judge.key: the name of the environment variable with the key is needed, no key",
    ),
    (
        swap("  model_name", "  base_url: http://a:b@host/v1\n  model_name"),
        "line 3: judge.base_url: an address without user name, password",
    ),
    # Its forms.
    (without("accept"), "line 1: judge.accept is missing: the words by which the judge accepts"),
    (without("  reject"), "line 1: judge.reject is missing: the words by which the judge rejects"),
    (swap('"GRADE: I"', '"GRADE: C"'), 'line 5: accept and reject are the same ("GRADE: C")'),
    (
        swap("  model_name", "  pattern: 'GRADE: ([CI]'\n  model_name"),
        "line 3: judge.pattern is no regular expression",
    ),
    (
        swap("  model_name", "  pattern: 'GRADE: .'\n  model_name"),
        "line 3: judge.pattern has 0 groups and needs one, such as 'GRADE: ([CI])'",
    ),
    (
        swap("  model_name", "  threshold: 0.5\n  model_name"),
        "line 3: judge.pattern is missing: threshold needs the score",
    ),
    # Its prompt.
    (swap("grader.txt", "grade.txt"), 'line 2: there is no grade.txt; did you mean "grader.txt"?'),
    (swap("grader.txt", "empty.txt"), "line 2: empty.txt is empty"),
    (
        swap("grader.txt", "no_response.txt"),
        "line 2: no_response.txt has no {response}: the judge would never see the answer",
    ),
    (
        swap("grader.txt", "pair.txt"),
        "line 2: pair.txt has no {response}: the judge would never see the answer; a judge that "
        "compares {response_a} with {response_b} needs pair: true",
    ),
    (
        swap("  model_name", "  pair: true\n  model_name"),
        "line 2: grader.txt has no {response_a}: the judge would never see the answer",
    ),
    (
        swap("  model_name", "  names: {questoin: question}\n  model_name"),
        'line 3: grader.txt has no {questoin}; did you mean "question"?',
    ),
    (
        swap("grader.txt", "nip_judges.parts:Nothing"),
        "line 2: nip_judges.parts has no text 'Nothing'",
    ),
    # Its data.
    (
        swap("graded.jsonl", "grade.jsonl"),
        'line 7: there is no grade.jsonl; did you mean "graded.jsonl"?',
    ),
    (swap("graded.jsonl", "grader.txt"), "line 7: grader.txt: rows are read from .jsonl, .json"),
    (swap("human_label", "judge_label"), 'line 11: column "judge_label" is named like a judge\'s'),
    (swap("right: human_label", "right: null"), "line 11: data.right is missing: the column of"),
    (swap("  right:", "  kind: k\n  right:"), "line 11: data.kind is used by make_wrong: swap"),
    (
        swap("  right:", "  right_values: [A]\n  wrong_values: [A]\n  right:"),
        'line 12: "A" is in right_values and in wrong_values',
    ),
    # The attack.
    (swap("exact", "exakt"), 'line 12: there is no check "exakt"; did you mean "exact"?'),
    (without("reference"), "line 11: check: exact compares with the reference; set data.reference"),
    (swap("exact", "mine.py:check"), "line 12: check: there is no mine.py"),
    (
        swap("check: exact", "surface: free"),
        "line 12: no text of an attacker can be proved wrong here: check is missing. Left: fixed "
        "wrong rows with text around them (surface: around)",
    ),
    (YAML + "budget: {usd: 0}\n", "line 14: budget.usd should be greater than 0 (got 0)"),
    (
        YAML + "budget:\n  usd: 2\n",
        "line 15: budget.usd needs prices.prompt_usd and prices.completion_usd",
    ),
    (
        FUNCTION + "budget: {usd: 2}\n",
        "line 5: budget.usd: nothing here says what a call costs; set budget.calls instead",
    ),
]


@pytest.mark.parametrize(("text", "line"), FAULTS, ids=[line[:60] for _, line in FAULTS])
def test_each_fault_is_one_line_with_the_line_of_its_key(text, line):
    with pytest.raises(SettingsError) as caught:
        load(text)
    said = str(caught.value)
    assert said.startswith("judge.yaml") and "\n" not in said
    if line.startswith("line"):
        assert said.startswith(f"judge.yaml, {line}")
    assert line in said
    assert "sk-proj" not in said and "a:b" not in said


def test_the_file_of_the_page_is_taken_and_its_model_is_asked():
    file = load(YAML)
    assert file.agent is not None and file.agent.model_name == "a-model"
    assert file.agent.freeze_agent and file.prompt_text == PROMPT
    assert (file.seed, file.concurrency, file.timeout_s, file.surface) == (0, 16, 120, None)
    assert file.place("data", "right") == "judge.yaml, line 11"
    assert file.path == Path("judge.yaml")


@pytest.mark.parametrize(("accept", "reject"), [("yes", "no"), ("1", "0"), ("true", "false")])
def test_words_that_yaml_reads_as_values_stay_words(accept, reject):
    text = swap('"GRADE: C"', accept).replace('"GRADE: I"', reject)
    text = text.replace("right: human_label", "right: yes\n  right_values: [1, yes]")
    file = load(text)
    assert (file.judge.accept, file.judge.reject) == (accept, reject)
    assert file.data.right == "yes" and file.data.right_values == ("1", "yes")


def test_the_other_kinds_of_judge_are_taken():
    assert load(FUNCTION).agent is None
    grader = "judge:\n  grader: label.json\ndata:\n  file: graded.jsonl\n"
    agent = load(grader).agent
    assert agent is not None and agent.model_name == "m"
    assert load(grader.replace("label", "string")).agent is None
    reward = "judge:\n  reward_model: some/model\n  threshold: 0\ndata:\n  file: graded.jsonl\n"
    assert load(reward).agent is None
    pair = load(swap("grader.txt", "pair.txt\n  pair: true"))
    assert pair.judge.pair


def test_a_prompt_may_be_a_text_of_a_module(folder):
    (folder / "prompts.py").write_text('GRADER = "{question} {response}"\n')
    assert load(swap("grader.txt", "prompts.py:GRADER")).prompt_text == "{question} {response}"


def test_other_names_of_placeholders_are_mapped(folder):
    (folder / "own.txt").write_text("{task} {{answer}} {criterion} {style}")
    text = swap(
        "grader.txt",
        "own.txt\n  names: {task: question, answer: response, criterion: reference}\n"
        "  fill: {style: short}",
    )
    assert load(text).judge.fill == {"style": "short"}


def test_overrides_are_laid_on_top():
    file = load(YAML, "budget.calls=5", "seed=3", "judge.accept=1", "data.right=yes")
    assert (file.budget.calls, file.seed) == (5, 3)
    assert (file.judge.accept, file.data.right) == ("1", "yes")
    with pytest.raises(SettingsError, match="write it as block"):
        load(YAML, "budget")
    with pytest.raises(SettingsError, match=r"budget\.calls should be greater than 0"):
        load(YAML, "budget.calls=-1")


def test_the_digest_covers_settings_and_bytes_and_no_budget(folder):
    first = load(YAML).digest
    assert load(YAML + "# a comment\n").digest == first
    assert load(YAML + "budget: {calls: 5}\nconcurrency: 2\n").digest == first
    others = {first, load(YAML + "seed: 1\n").digest, load(FUNCTION).digest}
    for name in ("grader.txt", "graded.jsonl", "my_judge.py"):
        (folder / name).write_text((folder / name).read_text() + "\n")
        others |= {load(YAML).digest, load(FUNCTION).digest}
    assert len(others) == 3 + 4  # data is of both


def test_a_file_too_large_is_refused_before_it_is_read(folder):
    with (folder / "graded.jsonl").open("wb") as file:
        file.truncate(MOST_DATA_BYTES + 1)
    with pytest.raises(SettingsError, match=r"line 7: graded.jsonl has 1\.1 GB, at most 1\.1 GB"):
        load(YAML)


def test_the_starter_of_nip_init_is_a_judge_file(folder):
    import nip_judges

    starter = Path(nip_judges.__file__).parent / "starter.yaml"
    text = starter.read_text()
    settings = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    assert len(settings) <= 15 and max(map(len, text.splitlines())) <= 100
    assert load(text).budget.calls == 10_000


def test_nip_init_writes_it_and_nothing_beside(tmp_path):
    from typer.testing import CliRunner

    from nip_cli.cli import app

    place = tmp_path / "new"
    done = CliRunner().invoke(app, ["init", str(place / "judge.yaml"), "--from", "judge"])
    assert done.exit_code == 0, done.output
    assert [path.name for path in place.iterdir()] == ["judge.yaml"]
    assert f"nip attack --judge {place / 'judge.yaml'} --dry-run" in done.output
    assert "THIS_FILE" not in (place / "judge.yaml").read_text()
    assert "run_name" not in done.output
