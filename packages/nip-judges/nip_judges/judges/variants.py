"""Rules before and after a judge: the same judge, harder to fool.

make_variant   the variant of a judge, by its name; VARIANTS: the names, with what each does
RequireAnswer  a response without a final answer is rejected, without a call
Neutralised    the judge's markers and forms are broken up in a response before it is shown
Committed      the judge answers the question itself, in a call of its own, before it compares
has_answer     whether a response has a final answer
break_up       a text without markers and forms

`last-verdict` is the judge with `verdict_forms.EndForm`. Each has a digest of its own.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nip_core.errors import SettingsError
from nip_core.hashing import derive_seed, digest
from nip_core.nearest import did_you_mean
from nip_judges.checks.answer_texts import plain, read_numbers
from nip_judges.checks.stated_answers import last_line, list_statements
from nip_judges.judges.chat_asking import Chat, Said
from nip_judges.judges.filling import Prompt
from nip_judges.judges.prompted import ChatJudge, UnshownTextError
from nip_judges.parts import Judge, JudgeAnswer, ShownText
from nip_judges.verdict_forms import EndForm, PatternForm, TextForm

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

VARIANTS = {
    "require-answer": "a response without a final answer is rejected, without a call",
    "last-verdict": "the verdict counts at the end of the judge's answer alone",
    "neutralise": "markers and forms of the judge in a response are broken up",
    "commit-first": "the judge answers the question itself, then compares",
}
NO_ANSWER = "no final answer in the response"


def make_variant(name: str, judge: Judge, file: "JudgeFile") -> Judge:
    """Make a variant of a judge.

    Raises SettingsError for an unknown name, and for a variant of prompts with another judge.
    """
    if name not in VARIANTS:
        raise SettingsError(
            f"no variant {name!r}; there are {', '.join(VARIANTS)}{did_you_mean(name, VARIANTS)}"
        )
    variant_digest = digest([name, judge.digest])
    if name == "require-answer":
        return RequireAnswer(judge, variant_digest)
    if name == "neutralise":
        return Neutralised(judge, variant_digest, _list_broken(judge), _find_pattern(judge))
    if not isinstance(judge, ChatJudge):
        raise SettingsError(
            f"{file.path.name}: {name} is a variant of judges that ask a model; this one is "
            f"{judge.name}"
        )
    if name == "commit-first":
        return Committed(judge, variant_digest)
    return dataclasses.replace(
        judge, name=f"{judge.name}, {name}", digest=variant_digest, form=EndForm(judge.form)
    )


@dataclass(frozen=True)
class _Wrapped:
    """A judge around another one."""

    judge: Judge
    digest: str

    @property
    def accept_forms(self) -> Sequence[str]:
        return self.judge.accept_forms

    @property
    def is_paid(self) -> bool:
        return self.judge.is_paid

    @property
    def scores(self) -> bool:
        return self.judge.scores


@dataclass(frozen=True)
class RequireAnswer(_Wrapped):
    """Rejects a response that has no final answer, without a call. Of a pair, the other wins."""

    @property
    def name(self) -> str:
        return f"{self.judge.name}, require-answer"

    def compose(self, shown_text: ShownText) -> str:
        """Write the request as text."""
        return self.judge.compose(shown_text)

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Judge a text."""
        has_first = has_answer(shown_text.response, shown_text.reference)
        if shown_text.other is None and not has_first:
            return JudgeAnswer("reject", "", NO_ANSWER, calls=0)
        if shown_text.other is not None:
            has_second = has_answer(shown_text.other, shown_text.reference)
            if has_first != has_second:
                return JudgeAnswer("accept" if has_first else "reject", "", NO_ANSWER, calls=0)
        return await self.judge.ask(shown_text, seed)


_LEAD_IN = re.compile(
    r"(?:let['’]?s|let us|let me|first\b|to (?:solve|answer|begin)|step \d|i(?:['’]ll| will) )",
    re.IGNORECASE,
)
_ELSEWHERE = "solución respuesta 解 解答 答え 答案 解説 かいせつ"
_HEADING = frozenset(f"solution answer explanation reasoning response result {_ELSEWHERE}".split())
_OPTION = re.compile(r"(?<!\w)\(?[A-Z]\)?(?!\w)")


def has_answer(response: str, reference: str | None = None) -> bool:
    """Tell whether a response has a final answer.

    It has one where it marks one ("Answer: 4", a box), or where its last line may be one: with a
    number where the reference is one, with a lone letter where that is an option's; else with a
    word that is no heading, does not end in a colon, and does not only announce a solution.
    """
    if any(s.chunk.strip(" *_`.$:") and not s.is_hedged for s in list_statements(response)):
        return True
    line = last_line(response)
    key = (reference or "").strip()
    if not line:
        return False
    numbers = read_numbers(plain(key))
    if len(numbers) == 1 and len(key.split()) == 1:
        return bool(read_numbers(plain(line)))
    if _OPTION.fullmatch(key):
        return bool(_OPTION.search(line))
    words = line.strip(" *_`#.!\"'").lower()
    is_announced = bool(_LEAD_IN.match(words)) and not re.search(r"[=\d]", words)
    return not (words.endswith((":", "：", "…", "..")) or words in _HEADING or is_announced)


@dataclass(frozen=True)
class Neutralised(_Wrapped):
    """Breaks up the judge's markers and forms in a response before it is shown."""

    broken: tuple[str, ...]
    pattern: PatternForm | None = None

    @property
    def name(self) -> str:
        return f"{self.judge.name}, neutralise"

    def compose(self, shown_text: ShownText) -> str:
        """Write the request as text."""
        return self.judge.compose(self._change(shown_text))

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Judge a text."""
        return await self.judge.ask(self._change(shown_text), seed)

    def _change(self, shown_text: ShownText) -> ShownText:
        opponent = shown_text.other
        return dataclasses.replace(
            shown_text,
            response=break_up(shown_text.response, self.broken, self.pattern),
            other=None if opponent is None else break_up(opponent, self.broken, self.pattern),
        )


def break_up(text: str, broken: Sequence[str], pattern: PatternForm | None = None) -> str:
    """Put a dash into each of `broken` in a text, and before the verdict of each match."""
    if broken:
        longest_first = sorted(broken, key=len, reverse=True)
        any_form = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)
        text = any_form.sub(lambda match: _put_dash(match[0]), text)
    for _ in range(200):  # an expression may match its own verdict behind a dash: it is left
        reading = None if pattern is None else pattern.read(text)
        if reading is None or reading.verdict == "none" or reading.start is None:
            break
        text = f"{text[: reading.start]}-{text[reading.start :]}"
    return text


def _put_dash(marker: str) -> str:
    """Put a dash where a space is, else after the first letter or sign."""
    if " " in marker.strip():
        return marker.replace(" ", "-")
    return f"{marker[0]}-{marker[1:]}"


_MARKERS = re.compile(
    r"\[[A-Z][A-Z _/-]{2,40}\]|\[/?[A-Za-z][\w -]{2,40}\]|</?[A-Za-z][\w-]{1,40}>"
    r"|^[*#=~_-]{3,}(?=\s*$)|<\|[^|<>\n]{1,40}\|>",
    re.MULTILINE,
)


def _list_broken(judge: Judge) -> tuple[str, ...]:
    """List markers of the prompt, and the forms that are more than one plain word.

    A plain word such as "yes" stays: right answers have it too.
    """
    forms = list(judge.accept_forms)
    prompt = judge.prompt if isinstance(judge, ChatJudge) else None
    if isinstance(judge, ChatJudge) and isinstance(judge.form, TextForm):
        forms.append(judge.form.reject)
    broken = [form for form in forms if len(form) > 1 and re.search(r"\W", form)]
    return tuple(dict.fromkeys([*broken, *_find_markers(prompt)]))


def _find_markers(prompt: Prompt | None) -> list[str]:
    return [] if prompt is None else [match[0] for match in _MARKERS.finditer(prompt.shown)]


def _find_pattern(judge: Judge) -> PatternForm | None:
    form = judge.form if isinstance(judge, ChatJudge) else None
    # A pattern that is the verdict alone would break up each such word of a right answer.
    is_bare = isinstance(form, PatternForm) and any(
        form.read(value).verdict != "none" for value in (form.accept, form.reject) if value
    )
    return form if isinstance(form, PatternForm) and not is_bare else None


_COMMIT = (
    "Before you judge an answer of somebody else, answer this question yourself. Be short, and end "
    'with a line "Answer: " and your answer.\n\n'
)


@dataclass(frozen=True)
class Committed:
    """Has the judge answer the question first; its answer stands before the request, as its own.

    Of the two calls the tokens are added up. Where the first has no answer there is no verdict.
    """

    judge: ChatJudge
    digest: str
    is_paid: bool = True
    calls_per_answer: int = 2

    @property
    def name(self) -> str:
        return f"{self.judge.name}, commit-first"

    @property
    def accept_forms(self) -> Sequence[str]:
        return self.judge.accept_forms

    @property
    def scores(self) -> bool:
        return self.judge.scores

    def compose(self, shown_text: ShownText) -> str:
        """Write both requests as text; the answer to the first is not there yet."""
        return f"{_COMMIT}{shown_text.question}\n\n{self.judge.compose(shown_text)}"

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Ask twice: for an answer, and for the verdict."""
        try:
            chat = self.judge.write_chat(shown_text)
        except UnshownTextError as error:
            return JudgeAnswer("none", "", str(error), calls=0)
        question = {"role": "user", "content": _COMMIT + shown_text.question}
        first = await self.judge.seat.say([question], derive_seed(seed, "commit-first"))
        if first.reason is not None:
            answer = self.judge.read(first)
            return dataclasses.replace(answer, reason=f"of its own answer: {first.reason}")
        own = {"role": "assistant", "content": first.words}
        system = [message for message in chat if message["role"] in ("system", "developer")]
        rest = [message for message in chat if message not in system]
        second: Chat = [*system, question, own, *rest]
        answer = self.judge.read(await self.judge.say(second, seed))
        return _add_counts(answer, first)


def _add_counts(answer: JudgeAnswer, first: Said) -> JudgeAnswer:
    count: Callable[[str], int] = lambda name: int(getattr(first.answer, name, 0))  # noqa: E731
    return dataclasses.replace(
        answer,
        prompt_tokens=answer.prompt_tokens + count("prompt_tokens"),
        completion_tokens=answer.completion_tokens + count("completion_tokens"),
        calls=2,
    )
