"""Rules that the settings of a judge.yaml keep together, beyond the form of each.

check_file  all of it; the first fault is raised
"""

import re
from typing import TYPE_CHECKING

from nip_core.errors import SettingsError
from nip_core.nearest import did_you_mean
from nip_core.parameters.services.dialects import check_dialect
from nip_judges.settings.judge_settings import CHECKS, KINDS_OF_JUDGE, OUR_FIELDS, PAIR_FIELDS
from nip_judges.settings.named_texts import check_function, find_placeholders, suggest_file
from nip_judges.settings.pattern_checks import check_pattern

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".eval")
_NUMBERS = re.compile(r"\\d|\d-\d")
"""A pattern with these finds digits: its group is a score."""
_OF_PROMPTS = ("names", "fill", "as_written", "system", "pattern", "otherwise")
_OF_MODELS = (
    "model_name",
    "model_provider",
    "base_url",
    "api_dialect",
    "temperature",
    "top_p",
    "reasoning_effort",
    "served_as",
    "max_tokens_per_message",
    "extra_body",
    "key",
)
_OWN_LABELS = re.compile(r"(?i)(?<![a-z])(judge|grader|autograder|llm|verdict|model_graded)")


def check_file(file: "JudgeFile") -> None:
    """Check a judge.yaml. Raises SettingsError with the line of the first fault."""
    _check_kind(file)
    _check_model(file)
    _check_forms(file)
    _check_prompt(file)
    _check_data(file)
    if file.data.right is not None:
        check_label_name(file, file.data.right)
    _check_attack(file)
    _check_budget(file)


def _check_kind(file: "JudgeFile") -> None:
    kinds = [name for name in KINDS_OF_JUDGE if getattr(file.judge, name) is not None]
    if len(kinds) > 1:
        file.refuse(
            ("judge", kinds[-1]),
            f"judge has {' and '.join(kinds)}: one of them judges; leave the other out",
        )
    if not kinds:
        file.refuse(
            ("judge",), "judge has none of prompt, function, grader and reward_model; name one"
        )
    if kinds[0] != "prompt":
        for name in _OF_PROMPTS:
            if file.has("judge", name):
                file.refuse(
                    ("judge", name),
                    f"judge.{name} is of a prompt, not of a {kinds[0]}; leave it out",
                )
    if file.judge.function is not None:
        try:
            check_function(file.path.parent, file.judge.function)
        except ValueError as error:
            file.refuse(("judge", "function"), f"judge.function: {error}")


def _check_model(file: "JudgeFile") -> None:
    judge = file.judge
    if not file.asks_model:
        for name in _OF_MODELS:
            if file.has("judge", name):
                file.refuse(
                    ("judge", name),
                    f"judge.{name}: no model is asked by these settings; leave it out",
                )
        return
    if judge.model_name is None and not (file.grader_json or {}).get("model"):
        file.refuse(("judge",), "judge.model_name is missing: the name of the model that is asked")
    agent = file.agent
    assert agent is not None
    try:
        check_dialect("judge", agent)
    except ValueError as error:
        key = str(error).partition(":")[0].partition(".")[2]
        file.refuse(("judge", key), str(error))
    provider = agent.provider
    if not (provider.address or provider.address_variable or judge.base_url):
        file.refuse(
            ("judge", "model_provider"),
            f"judge.base_url is missing: the address of the {judge.model_provider} server, such as "
            "http://localhost:8000/v1",
        )


def _check_forms(file: "JudgeFile") -> None:
    """Check the forms of a judge's answer: accept and reject, or a pattern."""
    judge = file.judge
    accept, reject = ((form or "").strip() for form in (judge.accept, judge.reject))
    if judge.ignore_case:
        accept, reject = accept.casefold(), reject.casefold()
    if accept and accept == reject:
        file.refuse(("judge", "reject"), f'accept and reject are the same ("{judge.accept}")')
    if judge.pattern is not None:
        try:
            groups = re.compile(judge.pattern).groups
        except re.error as error:
            file.refuse(("judge", "pattern"), f"judge.pattern is no regular expression ({error})")
        if groups != 1:
            file.refuse(
                ("judge", "pattern"),
                f"judge.pattern has {groups} groups and needs one, such as 'GRADE: ([CI])'",
            )
        try:
            check_pattern(judge.pattern, judge.ignore_case)
        except SettingsError as error:
            file.refuse(("judge", "pattern"), f"judge.{error}")
    if judge.otherwise is not None:
        for name in ("reject", "pattern", "threshold"):
            if getattr(judge, name) is not None:
                file.refuse(("judge", "otherwise"), f"otherwise stands for {name}; leave one out")
    if judge.prompt is None:
        return
    if judge.threshold is not None:
        if judge.pattern is None:
            file.refuse(
                ("judge", "threshold"),
                "judge.pattern is missing: threshold needs the score, such as 'SCORE: ([0-9.]+)'",
            )
        for name in ("accept", "reject"):
            if getattr(judge, name) is not None:
                file.refuse(("judge", name), f"a score decides by threshold; leave {name} out")
        return
    is_score = judge.pattern is not None and _NUMBERS.search(judge.pattern) is not None
    if is_score and judge.accept is None and judge.reject is None:
        return  # a threshold is chosen
    for name, verb in (("accept", "accepts"), ("reject", "rejects")):
        if getattr(judge, name) is None and not (name == "reject" and judge.otherwise):
            file.refuse(
                ("judge",),
                f"judge.{name} is missing: the words by which the judge {verb}, such as "
                f'{name}: "GRADE: {"C" if name == "accept" else "I"}"',
            )


def _check_prompt(file: "JudgeFile") -> None:
    """Check that all that the judge must see is in its prompt."""
    judge, data = file.judge, file.data
    if judge.prompt is None:
        return
    placeholders = _find_all(file)
    for block, names in (("names", judge.names), ("fill", judge.fill)):
        for name in names:
            if name not in placeholders:
                hint = did_you_mean(name, placeholders).replace("'", '"')
                file.refuse(("judge", block, name), f"{judge.prompt} has no {{{name}}}{hint}")
    fields = set(list_prompt_fields(file).values())
    if data.response in fields:
        fields.add("response")
    for name in PAIR_FIELDS if judge.pair else ("response",):
        if name in fields:
            continue
        hint = ""
        if not judge.pair and set(PAIR_FIELDS) <= fields:
            hint = "; a judge that compares {response_a} with {response_b} needs pair: true"
        file.refuse(
            ("judge", "prompt"),
            f"{judge.prompt} has no {{{name}}}: the judge would never see the answer{hint}",
        )


def list_prompt_fields(file: "JudgeFile") -> dict[str, str]:
    """List the placeholders that rows fill, each with the name of its field or column."""
    judge = file.judge
    fixed = {*judge.fill, *judge.as_written}
    if (judge.prompt or "").startswith("inspect_ai.scorer."):
        fixed.add("instructions")  # its own are filled in
    return {name: judge.names.get(name, name) for name in _find_all(file) if name not in fixed}


def _find_all(file: "JudgeFile") -> list[str]:
    """Find the placeholders of a prompt and of its system prompt."""
    judge, data = file.judge, file.data
    filled = {*OUR_FIELDS, *PAIR_FIELDS, *judge.names, *judge.fill}
    filled |= {name for name in (data.question, data.response, data.reference) if name}
    text = f"{file.prompt_text or ''}\n{file.system_text or ''}"
    return list(find_placeholders(text, filled))


def _check_data(file: "JudgeFile") -> None:
    data = file.data
    path = file.find(data.file)
    if not path.exists():
        file.refuse(("data", "file"), f"there is no {data.file}{suggest_file(path)}")
    if not path.is_file():
        file.refuse(("data", "file"), f"{data.file} is no file; name the file of rows")
    if path.suffix.lower() not in DATA_SUFFIXES:
        file.refuse(
            ("data", "file"), f"{data.file}: rows are read from {', '.join(DATA_SUFFIXES)} alone"
        )
    if data.right is None and data.make_wrong is None:
        file.refuse(
            ("data", "right"),
            "data.right is missing: the column of labels; where all rows are right, set "
            "make_wrong: swap",
        )
    if data.kind is not None and data.make_wrong is None:
        file.refuse(("data", "kind"), "data.kind is used by make_wrong: swap alone; leave it out")
    both = set(data.right_values or ()) & set(data.wrong_values or ())
    if both:
        file.refuse(
            ("data", "wrong_values"), f'"{sorted(both)[0]}" is in right_values and in wrong_values'
        )


def check_label_name(file: "JudgeFile", column: str) -> None:
    """Check that labels are not the judge's own, as far as their column's name shows it."""
    if file.labels_by is None and _OWN_LABELS.search(column):
        file.refuse(
            ("data", "right"),
            f'column "{column}" is named like a judge\'s own verdicts: whose labels are these? '
            "Say it by labels_by: people, program or model",
        )


def _check_attack(file: "JudgeFile") -> None:
    check = file.check
    if check in CHECKS and check != "tests" and file.data.reference is None and not _is_log(file):
        file.refuse(("check",), f"check: {check} compares with the reference; set data.reference")
    if check is not None and check not in CHECKS:
        if ":" not in check:
            hint = did_you_mean(check, CHECKS).replace("'", '"')
            file.refuse(
                ("check",),
                f'there is no check "{check}"{hint}; there are {", ".join(CHECKS)} and '
                "path/to/file.py:function",
            )
        try:
            check_function(file.path.parent, check)
        except ValueError as error:
            file.refuse(("check",), f"check: {error}")
    if check is None and file.surface is not None and "free" in file.surface:
        file.refuse(
            ("surface",),
            "no text of an attacker can be proved wrong here: check is missing. Left: fixed wrong "
            "rows with text around them (surface: around)",
        )


def _is_log(file: "JudgeFile") -> bool:
    return file.find(file.data.file).suffix.lower() in (".eval", ".json")


def _check_budget(file: "JudgeFile") -> None:
    if file.budget.usd is None:
        return
    if not file.asks_model:
        file.refuse(
            ("budget", "usd"),
            "budget.usd: nothing here says what a call costs; set budget.calls instead",
        )
    prices = file.prices
    if prices.prompt_usd is None or prices.completion_usd is None:
        file.refuse(
            ("budget", "usd"),
            "budget.usd needs prices.prompt_usd and prices.completion_usd, per million tokens",
        )
