"""From a request to the rows of the embedded engine, and from the rows to its answer.

check_counts      refuses more choices than there can be
refuse_tools      refuses tools that the chat template can't describe
make_guide        the grammar of an answer, where it has one
encode_request    a request -> the token ids of its prompt
make_rows         a request, its prompt and its guide -> one row for each of its choices
RowReader         the tokens added to a row since the last look, as a `Delta`
separate_calls    the `Delta` of a whole row, with calls of tools apart from its text
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nip_lm_server import aside
from nip_lm_server.engines.base import (
    Delta,
    EngineError,
    EngineRequestError,
    GenerationRequest,
    PromptScores,
    TopLogprob,
    room_for_answer,
)
from nip_lm_server.engines.embedded.decoding.answers import AnswerText
from nip_lm_server.engines.embedded.decoding.batching import Decoder, Row
from nip_lm_server.engines.embedded.decoding.sampling import (
    MAX_TOP_LOGPROBS,
    Settings,
    row_random,
    widen_scores,
)
from nip_lm_server.engines.embedded.worker import ModelWorker
from nip_lm_server.engines.guided import (
    Guide,
    write_call_grammar,
    write_json_grammar,
    write_lark_grammar,
)
from nip_lm_server.lora.rowwise_lora import LoraAdapter

MAX_SCORED_TOP = 256
"""Most likeliest tokens at each place of a prompt. A rule of thumb: distillation takes twenty."""
MAX_SCORED_BYTES = 4 * 2**30
"""Memory of the scores of one prompt: they are computed for all tokens at once."""
_TOOL_KEYS = {"tool_calls", "tool_call_id"}


async def encode_request(
    worker: ModelWorker, request: GenerationRequest, *, contexts: int = 1
) -> list[int]:
    """The token ids of a request's prompt. Raises EngineRequestError.

    Messages may take `contexts` times the model's context.

    A text is encoded by the tokenizer's own rule for plain texts: it begins with a special token
    where the model was trained so. Token ids stay as they are.
    """
    prompt = request.prompt
    if prompt is None:
        messages, tools, body_bytes = request.messages, request.tools, request.body_bytes
        await aside.run(body_bytes, refuse_tools, worker, messages, tools)
        return await worker.prompts.messages(
            messages, tools, contexts=contexts, body_bytes=body_bytes
        )
    if isinstance(prompt, str):
        ids = await worker.prompts.text(prompt, body_bytes=request.body_bytes)
    else:
        # Before the ids are looked at one by one, for the same reason as below.
        room_for_answer(request, len(prompt), worker.loaded.max_model_len)
        ids, vocabulary = list(prompt), worker.loaded.vocabulary
        # The smallest and the largest alone, since a body may have very many.
        if ids and (min(ids) < 0 or max(ids) >= vocabulary):
            wrong_id = next(token for token in ids if not 0 <= token < vocabulary)
            raise EngineRequestError(
                f"the token id {wrong_id} is not in the vocabulary: this model has 0 to "
                f"{vocabulary - 1}",
                code="invalid_value",
                param="prompt",
            )
    # Without a token a model gives no logits.
    if not ids:
        raise EngineRequestError("the prompt has no tokens", "invalid_value", "prompt")
    return ids


def check_counts(request: GenerationRequest, max_batch: int) -> None:
    """Raise EngineRequestError for more choices or alternatives than there can be."""
    for name, value, limit in (
        ("n", request.n, max_batch),
        ("top_logprobs", request.top_logprobs, MAX_TOP_LOGPROBS),
    ):
        if value > limit:
            raise EngineRequestError(
                f"{name} is {value}, but this engine gives at most {limit}",
                code="invalid_value",
                param=name,
            )


def make_rows(
    worker: ModelWorker,
    request: GenerationRequest,
    prompt: list[int],
    adapter: LoraAdapter | None,
    guide: Guide | None,
) -> list[Row]:
    """The rows of a request. Raises EngineRequestError where they have no room."""
    max_tokens = room_for_answer(request, len(prompt), worker.loaded.max_model_len)
    seed = secrets.randbits(63) if request.seed is None else request.seed
    settings = Settings(
        request.temperature, request.top_p, request.repetition_penalty, request.top_k
    )
    stops = None if request.stop_tokens is None else frozenset(request.stop_tokens)
    return [
        Row(
            prompt=prompt,
            adapter=adapter,
            max_tokens=max_tokens,
            settings=settings,
            random=row_random(seed, choice),
            text=AnswerText(worker.decode, request.stop) if request.stop else None,
            stop_tokens=stops,
            wants_logprobs=request.logprobs,
            wants_top=request.top_logprobs,
            top_at=worker.begins(words) if (words := request.top_at or request.listed_at) else None,
            lists_some=bool(request.listed_at),
            # The grammar is compiled once, and each choice goes its own way through it.
            guide=guide if guide is None or choice == 0 else guide.copy(),
        )
        for choice in range(request.n)
    ]


def check_scored(tokens: int, vocabulary: int, top: int, score_bytes: int = 4) -> None:
    """Raise EngineRequestError for a prompt whose scores would take too much memory."""
    if top > MAX_SCORED_TOP:
        raise EngineRequestError(
            f"{top} likeliest tokens of a prompt were asked for, at most {MAX_SCORED_TOP} are "
            "given",
            "invalid_value",
            "topk_prompt_logprobs",
        )
    size = tokens * vocabulary * 2 * score_bytes  # logits and log-probabilities
    if size > MAX_SCORED_BYTES:
        raise EngineRequestError(
            f"to score {tokens} tokens among {vocabulary} takes {size / 2**30:.1f} GiB, at most "
            f"{MAX_SCORED_BYTES / 2**30:.0f} are taken: score a shorter prompt",
            "invalid_value",
            "prompt_logprobs",
        )


def score_prompt(
    decoder: Decoder, tokens: Sequence[int], adapter: LoraAdapter | None, top: int
) -> PromptScores:
    """Score a prompt's tokens; as a command, in the worker's thread."""
    if len(tokens) < 2:
        return PromptScores(())
    logprobs = widen_scores(decoder.logits_after(tokens[:-1], adapter)).log_softmax(-1)
    targets = torch.tensor([*tokens][1:], device=logprobs.device)
    scored = tuple(logprobs.gather(1, targets[:, None])[:, 0].float().tolist())
    if not top:
        return PromptScores(scored)
    best = logprobs.topk(min(top, logprobs.shape[1]))
    places = zip(best.indices.tolist(), best.values.float().tolist(), strict=True)
    return PromptScores(
        scored, tuple(tuple(zip(ids, values, strict=True)) for ids, values in places)
    )


def refuse_tools(
    worker: ModelWorker,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Raise EngineRequestError for tools in a prompt, if the template has none: it would leave
    them out without an error.
    """
    if worker.loaded.tool_form is not None:
        return
    place = next((i for i, m in enumerate(messages) if m.keys() & _TOOL_KEYS), None)
    if tools or place is not None:
        raise EngineRequestError(
            "this model's chat template has no tools, or writes calls in a form that this "
            "engine can't read: ask for JSON with 'response_format' instead",
            "unsupported_value",
            "tools" if tools else f"messages[{place}]",
        )


def make_guide(worker: ModelWorker, request: GenerationRequest) -> Guide | None:
    """Begin to guide an answer; None if the request has no form or the form no grammar."""
    form, param = worker.loaded.tool_form, request.form_parameter
    if request.grammar is not None:
        return worker.guide(write_lark_grammar(request.grammar), param)
    if request.tools and form is not None:
        tools, schema = request.tools, request.schema
        grammar = write_call_grammar(form, tools, request.forced_tools, schema)
    elif request.schema is not None:
        grammar = write_json_grammar(request.schema)
    else:
        return None
    return None if grammar is None else worker.guide(grammar, param)


def refuse_unguided(rows: Sequence[Row], param: str) -> None:
    """Raise EngineRequestError where an answer left its grammar: none of it can be used."""
    failure = next((row.guide.failure for row in rows if row.guide and row.guide.failure), "")
    if failure:
        raise EngineRequestError(
            f"the answer can't be guided to its end, the form is too complex: {failure[:300]}",
            "invalid_value",
            param,
        )


def refuse_broken(rows: Sequence[Row]) -> None:
    """Raise EngineError where the model had no next token."""
    row = next((row for row in rows if row.broken), None)
    if row is not None:
        model = "the base model" if row.adapter is None else f"adapter {row.adapter.name}"
        raise EngineError(
            f"the scores of {model} are no finite numbers after {len(row.prompt)} tokens of prompt "
            f"and {len(row.generated)} of the answer: its weights or their precision can't be used"
        )


class RowReader:
    """Reads row `index` of a request, in pieces, while the worker's thread adds to it."""

    def __init__(self, worker: ModelWorker, row: Row, index: int, request: GenerationRequest):
        self._worker, self._row, self._index, self._request = worker, row, index, request
        self._text = AnswerText(worker.decode, request.stop)
        self._pushed = 0
        self._delivered = 0
        self.finished = False

    def read(self) -> Delta | None:
        """The newly certain text since the last call; None where there is none yet.

        Tokens whose text is held back come with the text, or at the end.
        """
        row, request = self._row, self._request
        # The end is set after the last token, so it is looked at before the tokens.
        finish_reason = row.finish_reason
        count = len(row.generated)
        for token in row.generated[self._pushed : count]:
            # The stop token is counted and listed, but is no part of the text.
            if token not in self._worker.loaded.stop_tokens:
                self._text.push(token)
        self._pushed = count
        # Now a text that was held back, for a stop string or a character, is certain.
        if finish_reason is not None:
            self._text.finish()
            self.finished = True
        text = self._text.take()
        # A token may end within a character: its piece would be empty.
        if not text and not self.finished:
            return None
        added = slice(self._delivered, count)
        self._delivered = count
        ids = tuple(row.generated[added])
        tokens = list(map(self._show, ids)) if request.logprobs else []
        logprobs = row.logprobs[added]
        top = list(map(self._alternatives, row.top_logprobs[added]))
        if row.lists_some:
            for place in range(len(top) - 1, 0, -1):  # from the end: the places before stay
                if not top[place] and not top[place - 1]:
                    tokens[place - 1 : place + 1] = [tokens[place - 1] + tokens[place]]
                    del logprobs[place], top[place]
        return Delta(
            index=self._index,
            text=text,
            finish_reason=finish_reason,
            tokens=tuple(tokens),
            token_ids=ids if request.return_token_ids else (),
            logprobs=tuple(logprobs),
            top_logprobs=tuple(top),
            completion_tokens=len(ids),
        )

    def _alternatives(self, likeliest: Sequence[tuple[int, float]]) -> tuple[TopLogprob, ...]:
        # A grammar may allow fewer tokens than the request wants.
        possible = [(token, logprob) for token, logprob in likeliest if logprob > -math.inf]
        return tuple(TopLogprob(self._show(token), logprob, token) for token, logprob in possible)

    def _show(self, token: int) -> str:
        return self._worker.show_token(token)


def echo_prompt(
    worker: ModelWorker,
    request: GenerationRequest,
    whole: Delta,
    ids: Sequence[int],
    text: str,
    scores: PromptScores,
) -> Delta:
    """Put a prompt before a whole answer. Its first token has no score: no token precedes it."""
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    if request.logprobs:
        tokens, logprobs = tuple(map(worker.show_token, ids)), (None, *scores.logprobs)
    likeliest: tuple[tuple[TopLogprob, ...], ...] = ()
    if request.top_logprobs:
        places = [
            tuple(TopLogprob(worker.show_token(token), logprob, token) for token, logprob in best)
            for best in scores.likeliest
        ]
        likeliest = ((), *places)
    return replace(
        whole,
        text=text + whole.text,
        tokens=tokens + whole.tokens,
        token_ids=(tuple(ids) + whole.token_ids) if request.return_token_ids else (),
        logprobs=logprobs + whole.logprobs,
        top_logprobs=likeliest + whole.top_logprobs,
    )


def abandon(rows: Sequence[Row]) -> None:
    """Mark rows without a reader; the worker's thread drops them between two steps."""
    for row in rows:
        row.cancelled = True  # no effect on a finished row


def separate_calls(worker: ModelWorker, whole: Delta, request: GenerationRequest) -> Delta:
    """A whole answer with the calls of tools taken out of its text."""
    form = worker.loaded.tool_form
    if not request.tools or form is None:
        return whole
    names = [tool["function"]["name"] for tool in request.tools]
    text, calls = form.read(whole.text, names)
    if not calls:  # a text that only looks like a call stays a text
        return whole
    # The request wants one, and a model may write more all the same.
    if not request.parallel_tool_calls:
        calls = calls[:1]
    # An answer cut at its limit keeps that reason, calls or not: the last call may lack its end.
    reason = "tool_calls" if whole.finish_reason == "stop" else whole.finish_reason
    return replace(whole, text=text, tool_calls=calls, finish_reason=reason)
