"""Judges that are a grader's file of OpenAI's form.

make_grader        the judge of a file's `grader`
StringCheckJudge   string_check: eq, ne, like (the input holds the reference), ilike (in any case)
PythonJudge        python: ``grade(sample, item)`` in the sandbox, with the standard library alone

label_model and score_model are a `ChatJudge`. OpenAI does not publish how its service asks for a
label or a number. Here the file's messages are sent as they are, and the last one asks for JSON in
words of nip's own; so a rate is of the grader as nip asks it. `judge.model_name` counts before the
file's model, and settings of judge.yaml before `sampling_params`.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nip_core.errors import SettingsError
from nip_core.hashing import digest
from nip_core.rollouts.client.completions import ChatCompletions
from nip_judges.judges.chat_asking import Chat, make_seat
from nip_judges.judges.grader_settings import (
    GraderMessage,
    LabelModel,
    PythonGrader,
    ScoreModel,
    StringCheck,
    list_contents,
    read_grader,
)
from nip_judges.judges.grader_templates import check_templates, fill_template, list_items
from nip_judges.judges.prompted import ChatJudge, UnshownTextError
from nip_judges.parts import Judge, JudgeAnswer, ShownText
from nip_judges.verdict_forms import LabelForm, NumberForm

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

LABEL_KEY, SCORE_KEY = "label", "result"
_ASK_LABEL = (
    "Choose exactly one of these labels: {labels}. Answer with JSON alone, in this form: {form}"
)
_ASK_SCORE = (
    "Give one number from {low:g} to {high:g}. Answer with JSON alone, in this form: {form}"
)


def make_grader(file: "JudgeFile", client: ChatCompletions | None) -> Judge:
    """Make the judge of a file's `grader`. Raises SettingsError where it can't run here."""
    grader = read_grader(file)
    texts = _list_texts(grader)
    if texts is not None:

        def refuse(words: str) -> None:
            file.refuse(("judge", "grader"), f"{file.judge.grader}: {words}")

        check_templates(texts, file.data.response, refuse)
    if isinstance(grader, LabelModel):
        return _make_label(file, grader, client)
    if isinstance(grader, ScoreModel):
        return _make_score(file, grader, client)
    columns = [file.data.question, file.data.response, file.data.reference]
    grader_digest = digest(
        ["grader", grader.model_dump(mode="json"), columns, file.judge.threshold]
    )
    if isinstance(grader, StringCheck):
        return StringCheckJudge(grader.name, grader_digest, grader, file.data)
    return PythonJudge(grader.name, grader_digest, grader, _find_threshold(file, grader), file.data)


def _list_texts(grader: LabelModel | ScoreModel | StringCheck | PythonGrader) -> list[str] | None:
    if isinstance(grader, PythonGrader):
        return None
    if isinstance(grader, StringCheck):
        return [grader.input, grader.reference]
    return [text for message in grader.input for text in list_contents(message)]


def _find_threshold(file: "JudgeFile", grader: ScoreModel | PythonGrader) -> float | None:
    own = file.judge.threshold
    return grader.pass_threshold if own is None else own


def _make_label(file: "JudgeFile", grader: LabelModel, client: ChatCompletions | None) -> ChatJudge:
    form = LabelForm(grader.labels, grader.passing_labels, LABEL_KEY)
    labels = ", ".join(json.dumps(label, ensure_ascii=False) for label in grader.labels)
    request = _ASK_LABEL.format(labels=labels, form=json.dumps({LABEL_KEY: "..."}))
    return _make_asking(file, grader, client, form, request)


def _make_score(file: "JudgeFile", grader: ScoreModel, client: ChatCompletions | None) -> ChatJudge:
    low, high = grader.limits
    form = NumberForm(_find_threshold(file, grader), low, high, SCORE_KEY)
    request = _ASK_SCORE.format(low=low, high=high, form=f'{{"{SCORE_KEY}": {low:g}}}')
    return _make_asking(file, grader, client, form, request)


def _make_asking(
    file: "JudgeFile",
    grader: LabelModel | ScoreModel,
    client: ChatCompletions | None,
    form: LabelForm | NumberForm,
    request: str,
) -> ChatJudge:
    sampling = grader.sampling_params if isinstance(grader, ScoreModel) else None
    settings: dict[str, Any] = {}
    if sampling is not None:
        settings = sampling.model_dump(exclude={"seed", "max_completions_tokens"})
        settings["max_tokens_per_message"] = sampling.max_completions_tokens
    seat, data = make_seat(file, client, settings), file.data

    def write_chat(shown_text: ShownText) -> Chat:
        chat = [_write_message(message, shown_text, data) for message in grader.input]
        if chat[-1]["role"] == "user":
            chat[-1]["content"] += f"\n\n{request}"
        else:
            chat.append({"role": "user", "content": request})
        return chat

    columns = [data.question, data.response, data.reference]
    threshold = form.threshold if isinstance(form, NumberForm) else None
    return ChatJudge(
        name=seat.agent.model_name,
        digest=digest(
            ["grader", grader.model_dump(mode="json"), request, threshold, columns, seat.digest]
        ),
        accept_forms=form.accept_forms,
        scores=isinstance(form, NumberForm),
        seat=seat,
        form=form,
        write_chat=write_chat,
    )


def _write_message(message: GraderMessage, shown_text: ShownText, data: Any) -> dict[str, str]:
    # "developer" is a name of OpenAI's alone; servers of others know it as "system".
    role = "system" if message.role == "developer" else message.role
    texts = [fill_template(text, shown_text, data) for text in list_contents(message)]
    return {"role": role, "content": "\n\n".join(texts)}


@dataclass(frozen=True)
class StringCheckJudge:
    """A comparison of two texts: a rule, which takes no call."""

    name: str
    digest: str
    grader: StringCheck
    data: Any
    accept_forms: Sequence[str] = ()
    is_paid: bool = False
    scores: bool = False

    def compose(self, shown_text: ShownText) -> str:
        """Write the comparison as text."""
        try:
            return "\n".join(
                [
                    self._fill(self.grader.input, shown_text),
                    self.grader.operation,
                    self._fill(self.grader.reference, shown_text),
                ]
            )
        except UnshownTextError as error:
            return f"({error})"

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Compare."""
        try:
            text = self._fill(self.grader.input, shown_text)
            reference = self._fill(self.grader.reference, shown_text)
        except UnshownTextError as error:
            return JudgeAnswer("none", "", str(error), calls=0)
        passes = {
            "eq": text == reference,
            "ne": text != reference,
            "like": reference in text,
            "ilike": reference.lower() in text.lower(),
        }[self.grader.operation]
        return JudgeAnswer("accept" if passes else "reject", "", calls=0)

    def _fill(self, text: str, shown_text: ShownText) -> str:
        return fill_template(text, shown_text, self.data)


_RUN = """
import json, sys
given = json.loads(sys.stdin.read())
value = grade(given["sample"], given["item"])
sys.stdout.write("\\n" + json.dumps({given["mark"]: float(value)}))
"""


@dataclass(frozen=True)
class PythonJudge:
    """A program with ``grade(sample, item)``, run in the sandbox for each text.

    `sample` has output_text and output_json; `item` has the columns, as text. No package of
    OpenAI's image is there.
    """

    name: str
    digest: str
    grader: PythonGrader
    threshold: float | None
    data: Any
    accept_forms: Sequence[str] = ()
    is_paid: bool = False
    scores: bool = True

    def compose(self, shown_text: ShownText) -> str:
        """Write the arguments as text."""
        return json.dumps(self._list_arguments(shown_text), ensure_ascii=False)

    def _list_arguments(self, shown_text: ShownText) -> dict[str, Any]:
        try:
            value = json.loads(shown_text.response)
        except (ValueError, RecursionError):
            value = None
        sample = {"output_text": shown_text.response, "output_json": value}
        return {"sample": sample, "item": list_items(shown_text, self.data)}

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Run the program; whatever it does wrong is no verdict with the reason.

        Raises SettingsError where this system has no sandbox.
        """
        from nip_sandbox.sandbox import SandboxError, run_python

        # A program can't know it, so that no text of a response can stand for its result.
        mark = digest(["result", self.digest, seed, shown_text.response])
        arguments = json.dumps({**self._list_arguments(shown_text), "mark": mark})
        try:
            result = await asyncio.to_thread(
                run_python, f"{self.grader.source}\n{_RUN}", stdin=arguments
            )
        except SandboxError as error:
            raise SettingsError(
                f"{self.name}: a python grader needs the sandbox: {error}"
            ) from None
        lines = result.stdout.strip().splitlines()
        try:
            score = float(json.loads(lines[-1])[mark])
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            last = result.stderr.strip().splitlines()[-1:] or [f"it ended with {result.status}"]
            return JudgeAnswer("none", "", f"{self.name}: {last[0]}"[:500], calls=0)
        if not math.isfinite(score):
            return JudgeAnswer("none", "", f"{self.name}: it returned {score}", calls=0)
        if self.threshold is None:
            return JudgeAnswer("none", "", "judge.threshold is not set", score=score, calls=0)
        verdict = score >= self.threshold
        return JudgeAnswer("accept" if verdict else "reject", "", score=score, calls=0)
