"""Judges that are a prompt at a model, and all that ask a model by a chat.

ChatJudge     a judge that writes a chat and reads a verdict from the answer
make_prompted the judge of a file's `prompt`
find_examples the texts of a prompt by which it asks for acceptance
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nip_core.game.answer_rows import read_tokens
from nip_core.hashing import digest
from nip_core.rollouts.client.completions import ChatCompletions
from nip_judges.judges.chat_asking import Chat, ModelSeat, Said, make_seat
from nip_judges.judges.filling import Prompt, list_values, read_prompts
from nip_judges.judges.likelihood import estimate_p_accept
from nip_judges.parts import JudgeAnswer, ShownText
from nip_judges.verdict_forms import PatternForm, VerdictForm, make_form

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile


@dataclass(frozen=True)
class ChatJudge:
    """A judge that asks a model by a chat, and reads its words by a form."""

    name: str
    digest: str
    accept_forms: Sequence[str]
    scores: bool
    seat: ModelSeat
    form: VerdictForm
    write_chat: Callable[[ShownText], Chat]
    """Write the chat. Raises ValueError, with the reason, for a text that can't be shown."""
    prompt: Prompt | None = None
    """The prompt that the chat is made of; None where it is no single text."""
    is_paid: bool = True

    def compose(self, shown_text: ShownText) -> str:
        """Write the request as text."""
        try:
            return "\n\n".join(message["content"] for message in self.write_chat(shown_text))
        except UnshownTextError as error:
            return f"({error})"

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Ask the model once, and read its verdict."""
        try:
            chat = self.write_chat(shown_text)
        except UnshownTextError as error:
            return JudgeAnswer("none", "", str(error), calls=0)
        return self.read(await self.say(chat, seed))

    async def say(self, chat: Chat, seed: int) -> Said:
        """Ask the model, with log-probabilities where they may tell P(accept)."""
        return await self.seat.say(chat, seed, with_logprobs=self.form.tails is not None)

    def read(self, reply: Said) -> JudgeAnswer:
        """Read the verdict of an answer."""
        answer = reply.answer
        if answer is None:
            return JudgeAnswer("none", "", reply.reason)
        counts = {
            "model": answer.model,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }
        if reply.reason is not None:
            return JudgeAnswer("none", reply.words, reply.reason, **counts)  # type: ignore[arg-type]
        reading = self.form.read(reply.words)
        reason = reading.reason
        if reading.verdict == "none" and answer.finish_reason == "length":
            reason = f"{reason}; cut off after {answer.completion_tokens} tokens"
        p_accept, tokens = None, read_tokens(answer.tokens)
        if tokens and self.form.tails is not None and reading.start is not None:
            p_accept = estimate_p_accept(tokens, reading.start, self.form.tails)
        return JudgeAnswer(
            verdict=reading.verdict,
            words=reply.words,
            reason=reason,
            score=reading.score,
            p_accept=p_accept,
            has_both=reading.has_both,
            model=answer.model,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
        )


class UnshownTextError(ValueError):
    """A text can't be shown as the judge's file asks."""


def make_prompted(file: "JudgeFile", client: ChatCompletions | None) -> ChatJudge:
    """Make the judge of a file's `prompt`. Raises SettingsError where it can't be one."""
    block, data = file.judge, file.data
    system, prompt = read_prompts(file)
    prompts = [part for part in (system, prompt) if part is not None]
    ignore_case = block.ignore_case
    form = make_form(
        block.accept, block.reject, block.pattern, block.threshold, ignore_case, block.otherwise
    )
    seat = make_seat(file, client)
    is_pair = bool(block.pair)

    def write_chat(shown_text: ShownText) -> Chat:
        if is_pair and shown_text.other is None:
            raise UnshownTextError("this judge compares two responses, and there is one")
        values = list_values(shown_text, data)
        chat = [{"role": "user", "content": prompt.fill(values)}]
        if system is not None:
            chat.insert(0, {"role": "system", "content": system.fill(values)})
        return chat

    forms = [block.accept, block.reject, block.pattern, block.threshold, ignore_case, is_pair]
    if block.otherwise is not None:
        forms.append(block.otherwise)
    columns = [data.question, data.response, data.reference]
    parts = [part.digest for part in prompts]
    return ChatJudge(
        name=seat.agent.model_name,
        digest=digest(["prompt", parts, columns, forms, seat.digest]),
        accept_forms=find_examples(form, prompt),
        scores=block.accept is None and block.reject is None,
        seat=seat,
        form=form,
        write_chat=write_chat,
        prompt=prompt,
    )


def find_examples(form: VerdictForm, prompt: Prompt) -> tuple[str, ...]:
    """Find the texts that accept, as the prompt itself asks for them.

    For a pattern the value alone is none: the words before it on its line, from a quotation mark
    on, are looked for in the prompt, such as the "GRADE: C" of an instruction.
    """
    if not isinstance(form, PatternForm) or form.accept is None:
        return form.accept_forms
    text = prompt.shown
    places: dict[str, int] = {}
    for place in re.finditer(re.escape(form.accept), text):
        line = text[text.rfind("\n", 0, place.start()) + 1 : place.end()]
        quoted = re.split(r"[\"'`“”‘’]", line)
        # Without a quotation mark the label alone: "GRADE: C" of "Answer with GRADE: C".
        label = re.search(r"(?:[\w-]+\s*[:=]\s*)?\Z", line[: -len(form.accept)])
        example = quoted[-1].strip()
        if len(quoted) == 1 and label is not None:
            example = f"{label[0]}{form.accept}"
        if example != form.accept and form.read(example).verdict == "accept":
            places[example] = places.get(example, 0) + 1
    examples = sorted((e for e in places if len(e) <= 80), key=lambda e: (-places[e], len(e)))
    return tuple(examples[:3]) or form.accept_forms
