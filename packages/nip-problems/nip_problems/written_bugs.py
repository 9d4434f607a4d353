"""Variants of right solutions that a language model writes, and how each answer ended.

    STYLES         the kinds of bugs that it is asked for
    make_requests  the requests about each problem
    find_pending   the requests that are not in the journal
    ask_all        ask for that; an answer is in the journal before its place is another's
    sort_answers   run the written variants on the tests, and label them by the results

A label never follows from a model's task: a variant that passes all tests is no bug, and a
rewrite that fails one is.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.concurrency import gather_or_cancel
from nip_core.errors import StageError
from nip_core.hashing import derive_key, derive_seed
from nip_core.parameters import HyperParameters
from nip_core.rollouts.client.completions import ChatAnswer, RequestRefusedError
from nip_core.rollouts.model_call import request_body
from nip_core.rollouts.storage.journal import GroupCommits
from nip_problems.asked_model import OpenModel, find_agent
from nip_problems.from_tests import Examined, WrittenVariants
from nip_problems.tested import Tested, find_defined_names, write_plainly
from nip_problems.variants import is_buggy, is_killed
from nip_sandbox.sandbox import TestReport

KIND = "language_model"
REWRITE = "rewrite"
_SUBTLE = (
    "The code must still run, give the right result in most cases, and read like the work of a "
    "careful programmer. Change nothing else, keep all names, and write no comments."
)
STYLES = {
    "boundary": "Introduce one subtle bug at a boundary: an off-by-one, a comparison that should "
    f"or should not include equality, an empty or a very short input. {_SUBTLE}",
    "edge_case": f"Introduce one subtle bug that shows for rare inputs only. {_SUBTLE}",
    "misreading": "Change the code to what somebody would write who has misread one detail of the "
    f"question. {_SUBTLE}",
    "state": "Introduce one subtle bug in what is kept between steps: a wrong variable, an update "
    f"in the wrong order, a value that is not reset. {_SUBTLE}",
    REWRITE: "Write the code with another structure, such that it still does exactly the same. "
    "Keep the names of functions and of their parameters, and write no comments.",
}
_SYSTEM = (
    "You change Python code. Answer with the whole changed code in one block that begins with "
    "```python and ends with ```, and with nothing else."
)
_BLOCK = re.compile(r"```[ \t]*(?:python3?|py)?[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
_BYTES_PER_TOKEN = 4

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """A question to a model, and its identity in the journal."""

    key: str
    problem: str
    style: str
    body: Record

    @property
    def prompt_tokens(self) -> int:
        """An estimate."""
        text = "".join(message["content"] for message in self.body["messages"])
        return len(text.encode()) // _BYTES_PER_TOKEN + 1


def make_requests(
    examined: Examined, parameters: HyperParameters, styles: Sequence[str], samples: int, model: str
) -> list[Request]:
    """Make `samples` requests of each style about each problem, in the order of the source."""
    agent, limit = find_agent(parameters), parameters.max_tokens("verifier")
    requests = []
    for candidates in examined.candidates:
        problem, solution = candidates.problem, candidates.right[0]
        for style in styles:
            chat = [
                {"role": "system", "content": _SYSTEM},
                {"role": "user", "content": _asked(problem, solution, style)},
            ]
            for number in range(samples):
                seed = derive_seed("written bug", parameters.seed, solution, style, number)
                body = request_body(model, agent, chat, seed, limit)
                key = derive_key("written bug", agent.model_provider, problem.name, body)
                requests.append(Request(key, problem.name, style, body))
    return requests


def _asked(problem: Tested, solution: str, style: str) -> str:
    return f"Question:\n{problem.question}\n\nCode:\n```python\n{solution}```\n\n{STYLES[style]}"


def find_pending(requests: Iterable[Request], records: Mapping[str, Record]) -> list[Request]:
    """List the requests without an answer so far."""
    return [request for request in requests if request.key not in records]


async def ask_all(
    requests: Sequence[Request],
    model: OpenModel,
    journal: GroupCommits,
    say: Callable[[str], None],
    *,
    is_first: bool,
) -> tuple[list[Record], dict[str, str]]:
    """Ask for all answers; returns their records, and by key why a request was refused.

    `is_first`: none was answered before. Raises StageError when no request can succeed, or all of
    the first are refused, and TransportError for a server that stays silent; the answers until then
    stand in the journal.
    """
    records: list[Record] = []
    refusals: dict[str, str] = {}

    async def ask(request: Request) -> None:
        try:
            # The call counts as in flight until its answer is durable.
            async with model.client.answers(model.endpoint, request.body) as answers:
                record = _record(request, answers[0])
                await journal.append(record)
        except RequestRefusedError as error:
            refusals[request.key] = str(error)
            return
        records.append(record)
        if len(records) % 100 == 0:
            say(f"{len(records)} of {len(requests)} answers")

    await gather_or_cancel(map(ask, requests))
    if is_first and len(refusals) == len(requests):
        raise StageError(
            f"{model.endpoint.base_url} refuses every request: {next(iter(refusals.values()))}"
        )
    return records, refusals


def _record(request: Request, answer: ChatAnswer) -> dict[str, Any]:
    return {
        "key": request.key,
        "problem": request.problem,
        "style": request.style,
        "text": answer.text or "",
        "model": answer.model,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
    }


def sort_answers(
    requests: Sequence[Request], records: Mapping[str, Record], examined: Examined
) -> tuple[dict[str, WrittenVariants], dict[str, int]]:
    """Return the tested variants by problem, and counts of the answers by their ending."""
    counts: Counter[str] = Counter()
    problems = {c.problem.name: c for c in examined.candidates}
    # 1. Find the answers that are code, and new.
    texts: dict[tuple[str, str], str] = {}
    for request in requests:
        if request.key not in records:
            counts[f"{request.style}: request refused"] += 1
            continue
        candidates = problems[request.problem]
        text, trouble = _read(records[request.key]["text"], candidates.problem)
        if text is not None and (text in candidates.right or (request.problem, text) in texts):
            trouble = "same text as another"
        if text is None or trouble:
            counts[f"{request.style}: {trouble}"] += 1
            continue
        texts[request.problem, text] = request.style
    # 2. Run the tests.
    reports = examined.runner.run((problems[name].problem, text) for name, text in texts)
    variants_by_problem = {name: WrittenVariants() for name in problems}
    for (name, text), style in _in_order(texts, reports):
        report, variants = reports[name, text], variants_by_problem[name]
        if report.all_passed and style == REWRITE:
            counts[f"{style}: passes all tests, correct"] += 1
            variants_by_problem[name] = WrittenVariants(variants.buggy, (*variants.right, text))
        elif report.all_passed:
            counts[f"{style}: passes all tests, left out"] += 1
        elif is_killed(report):
            counts[f"{style}: fails a test, buggy"] += 1
            variants_by_problem[name] = WrittenVariants(
                {**variants.buggy, text: f"{KIND}/{style}"}, variants.right
            )
        else:
            counts[f"{style}: comes to no end, left out"] += 1
    return variants_by_problem, dict(sorted(counts.items()))


def _in_order(
    texts: Mapping[tuple[str, str], str], reports: Mapping[tuple[str, str], TestReport]
) -> list[tuple[tuple[str, str], str]]:
    """Put partly right texts first, the others by a stable hash, so no style is preferred."""
    return sorted(
        texts.items(), key=lambda item: (not is_buggy(reports[item[0]]), derive_key(item[0][1]))
    )


def _read(answer: str, problem: Tested) -> tuple[str | None, str]:
    """Return the code in an answer as rows have it, or why there is none.

    It is the longest block. Without any, the answer itself may be the code, if it defines the name
    asked for: a word of regret is a program, too.
    """
    blocks = [block for block in _BLOCK.findall(answer) if block.strip()]
    if not blocks and not problem.names:
        return None, "no code in it"
    try:
        text = write_plainly(max(blocks, key=len) if blocks else answer)
    except (SyntaxError, ValueError, RecursionError):
        return None, "not Python" if blocks else "no code in it"
    if not find_defined_names(text).issuperset(problem.names):
        return None, "does not define what is asked for" if blocks else "no code in it"
    return text, ""
