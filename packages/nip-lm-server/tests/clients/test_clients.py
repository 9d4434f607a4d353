"""What clients of other projects get from the server; see conftest.py for the table of it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import dspy
import instructor
import litellm
import openai
import pytest
from called import ENGINES, Server, outcomes
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

TINY, KNOWN = "tiny", "gpt-4o-mini"
QUESTION = [{"role": "user", "content": "Is it right?"}]
IN_JSON = [{"role": "user", "content": "Is it right? Answer in JSON"}]
Call = Callable[[Server], str | None]


class Verdict(BaseModel):
    """What a verifier says."""

    verdict: Literal["accept", "reject"]
    sure: bool


CALLS: list[Any] = []


def call(client: str, name: str, *engines: str) -> Callable[[Call], Call]:
    """Register a call. It returns how it is refused, or None; by default with both engines."""

    def register(function: Call) -> Call:
        for engine in engines or ENGINES:
            CALLS.append(
                pytest.param(client, name, engine, function, id=f"{client}-{name}-{engine}")
            )
        return function

    return register


def right(text: str | None) -> None:
    Verdict.model_validate_json(text or "")


# openai-python


def openai_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base, api_key=server.key, max_retries=0)


def ask(server: Server, **body: Any) -> Any:
    body = {"model": TINY, "messages": QUESTION, "max_tokens": 150, **body}
    return openai_client(server).chat.completions.create(**body)


JSON_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {**Verdict.model_json_schema(), "additionalProperties": False},
    },
}
TOOLS = [openai.pydantic_function_tool(Verdict)]


@call("openai-python", "chat, `n`, `seed`")
def _(server: Server) -> None:
    answers = [ask(server, n=2, seed=5).choices for _ in range(2)]
    texts = [[choice.message.content for choice in choices] for choices in answers]
    assert texts[0] == texts[1] and len(texts[0]) == 2


@call("openai-python", "chat, streamed")
def _(server: Server) -> None:
    chunks = list(ask(server, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens > 0
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@call("openai-python", "chat, asynchronous")
def _(server: Server) -> None:
    async def run() -> str:
        async with openai.AsyncOpenAI(base_url=server.base, api_key=server.key) as client:
            answer = await client.chat.completions.create(
                model=TINY, messages=QUESTION, max_tokens=20
            )
            return answer.choices[0].message.content

    assert asyncio.run(run())


@call("openai-python", "`logprobs`")
def _(server: Server) -> str | None:
    if server.engine == "deterministic":
        with pytest.raises(openai.BadRequestError) as refused:
            ask(server, logprobs=True)
        assert refused.value.param == "logprobs"
        return "400: no model, no probabilities"
    assert ask(server, logprobs=True).choices[0].logprobs.content[0].logprob <= 0
    return None


@call("openai-python", "`completions`")
def _(server: Server) -> None:
    answer = openai_client(server).completions.create(model=TINY, prompt="Is", max_tokens=5)
    assert answer.choices[0].finish_reason


@call("openai-python", "`response_format` json_object", "deterministic")
def _(server: Server) -> None:
    answer = ask(server, messages=IN_JSON, response_format={"type": "json_object"})
    right(answer.choices[0].message.content)


@call("openai-python", "`response_format` json_schema, `parse`")
def _(server: Server) -> None:
    answer = openai_client(server).chat.completions.parse(
        model=TINY, messages=QUESTION, response_format=Verdict, max_tokens=150
    )
    assert isinstance(answer.choices[0].message.parsed, Verdict)


@call("openai-python", "json_schema, streamed")
def _(server: Server) -> None:
    with openai_client(server).chat.completions.stream(
        model=TINY, messages=QUESTION, response_format=Verdict, max_tokens=150
    ) as stream:
        stream.until_done()
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Verdict)


@call("openai-python", "a wrong schema")
def _(server: Server) -> str:
    wrong = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objekt"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, response_format=wrong)
    assert refused.value.param == "response_format"
    return "400, naming it"


@call("openai-python", "tools, `tool_choice` required, and the result sent back")
def _(server: Server) -> None:
    message = ask(server, tools=TOOLS, tool_choice="required").choices[0].message
    (made,) = message.tool_calls
    right(made.function.arguments)
    result = {"role": "tool", "tool_call_id": made.id, "content": "done"}
    history = [*QUESTION, message.model_dump(exclude_none=True), result]
    assert ask(server, messages=history, tools=TOOLS).choices[0].finish_reason


@call("openai-python", "tools, streamed")
def _(server: Server) -> None:
    with openai_client(server).chat.completions.stream(
        model=TINY, messages=QUESTION, tools=TOOLS, tool_choice="required", max_tokens=150
    ) as stream:
        stream.until_done()
        (made,) = stream.get_final_completion().choices[0].message.tool_calls
        assert isinstance(made.function.parsed_arguments, Verdict)


@call("openai-python", "tools, `tool_choice` auto")
def _(server: Server) -> None:
    assert ask(server, tools=TOOLS).choices[0].finish_reason


@call("openai-python", "models")
def _(server: Server) -> None:
    client = openai_client(server)
    assert {TINY, KNOWN} <= {model.id for model in client.models.list()}
    assert client.models.retrieve(TINY).id == TINY


@call("openai-python", "files, fine-tuning job, its model", "deterministic")
def _(server: Server) -> None:
    client = openai_client(server)
    row = json.dumps({"messages": [*QUESTION, {"role": "assistant", "content": "yes"}]}) + "\n"
    file = client.files.create(file=("train.jsonl", (row * 10).encode()), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model=TINY, training_file=file.id, suffix="a name with spaces"
    )
    while job.status not in ("succeeded", "failed", "cancelled"):
        job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.status == "succeeded", job.error
    assert job.fine_tuned_model.startswith(f"ft:{TINY}:a-name-with-spaces:")
    assert ask(server, model=job.fine_tuned_model).choices[0].message.content
    # litellm takes the same name behind its provider's.
    assert complete(server, f"openai/{job.fine_tuned_model}").choices[0].message.content


@call(
    "openai-python", "responses, embeddings, batches, uploads, moderations, images, vector stores"
)
def _(server: Server) -> str:
    client = openai_client(server)
    for offered_elsewhere in (
        lambda: client.responses.create(model=TINY, input="a"),
        lambda: client.embeddings.create(model=TINY, input="a"),
        lambda: client.batches.list(),
        lambda: client.uploads.create(
            bytes=1, filename="a", mime_type="text/plain", purpose="fine-tune"
        ),
        lambda: client.moderations.create(input="a"),
        lambda: client.images.generate(prompt="a"),
        lambda: client.vector_stores.list(),
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            offered_elsewhere()
        assert refused.value.code == "unknown_url"
    return "404"


# openai-node


def node(name: str, row: str, *engines: str) -> None:
    def run(server: Server) -> str | None:
        command = ["node", str(Path(__file__).with_name("calls.cjs")), name]
        done = subprocess.run(
            [*command, server.base, server.key, TINY],
            env={**os.environ, "NODE_PATH": str(Path(sys.prefix) / "node" / "node_modules")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    call("openai-node", row, *engines)(run)


node("chat", "chat")
node("stream", "chat, streamed")
node("json_schema", "`response_format` json_schema")
node("json_schema_stream", "json_schema, streamed")
node("tools", "tools, `tool_choice` required, and the result sent back")
node("models", "models")
node("fine_tune", "files, fine-tuning job, its model", "deterministic")
node("embeddings", "embeddings")
node("responses", "responses")


# litellm


def complete(server: Server, model: str = f"openai/{TINY}", **arguments: Any) -> Any:
    arguments = {"messages": QUESTION, "max_tokens": 150, **arguments}
    return litellm.completion(model=model, api_base=server.base, api_key=server.key, **arguments)


@call("litellm", "`openai/NAME`: chat, streamed")
def _(server: Server) -> None:
    assert complete(server).choices[0].message.content
    chunks = complete(server, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@call("litellm", "`hosted_vllm/NAME`: `response_format` json_schema")
def _(server: Server) -> None:
    answer = complete(server, f"hosted_vllm/{TINY}", response_format=Verdict)
    right(answer.choices[0].message.content)


@call("litellm", "`openai/NAME`: `response_format` json_schema")
def _(server: Server) -> None:
    right(complete(server, response_format=Verdict).choices[0].message.content)


@call("litellm", "tools, `tool_choice` required")
def _(server: Server) -> None:
    answer = complete(server, tools=TOOLS, tool_choice="required")
    right(answer.choices[0].message.tool_calls[0].function.arguments)


@call("litellm", "served as `gpt-4o-mini`: no provider before the name")
def _(server: Server) -> None:
    assert complete(server, KNOWN).choices[0].message.content


@call("litellm", "embedding")
def _(server: Server) -> str:
    with pytest.raises(litellm.exceptions.BadRequestError, match="unknown_url"):
        litellm.embedding(
            model=f"openai/{TINY}", api_base=server.base, api_key=server.key, input=["a"]
        )
    return "404"


# langchain-openai


def chat_model(server: Server, **settings: Any) -> ChatOpenAI:
    settings = {"model": TINY, "max_tokens": 150, "max_retries": 0, **settings}
    return ChatOpenAI(base_url=server.base, api_key=server.key, **settings)


@call("langchain-openai", "`invoke`, `stream`, `ainvoke`")
def _(server: Server) -> None:
    model = chat_model(server)
    assert model.invoke("Is it right?").content
    assert "".join(chunk.content for chunk in model.stream("Is it right?"))
    assert asyncio.run(chat_model(server).ainvoke("Is it right?")).content


@call("langchain-openai", "`with_structured_output`, by default (json_schema)")
def _(server: Server) -> None:
    answer = chat_model(server).with_structured_output(Verdict).invoke("Is it right?")
    assert isinstance(answer, Verdict)


@call("langchain-openai", "`with_structured_output`, function_calling")
def _(server: Server) -> None:
    structured = chat_model(server).with_structured_output(Verdict, method="function_calling")
    assert isinstance(structured.invoke("Is it right?"), Verdict)


@call("langchain-openai", "`with_structured_output`, json_mode", "deterministic")
def _(server: Server) -> None:
    structured = chat_model(server).with_structured_output(Verdict, method="json_mode")
    assert isinstance(structured.invoke("Is it right? Answer in JSON"), Verdict)


@call("langchain-openai", "`bind_tools`")
def _(server: Server) -> None:
    bound = chat_model(server).bind_tools([Verdict], tool_choice="any")
    Verdict.model_validate(bound.invoke("Is it right?").tool_calls[0]["args"])


@call("langchain-openai", "`OpenAIEmbeddings`")
def _(server: Server) -> str:
    embeddings = OpenAIEmbeddings(
        model=TINY, base_url=server.base, api_key=server.key, check_embedding_ctx_length=False
    )
    with pytest.raises(openai.NotFoundError):
        embeddings.embed_query("a")
    return "404"


# instructor


def instruct(server: Server, mode: Any, messages: Any = QUESTION) -> Verdict:
    client = instructor.from_openai(openai_client(server), mode=mode)
    answer: Verdict = client.create(
        model=TINY, messages=messages, response_model=Verdict, max_retries=0, max_tokens=150
    )
    return answer


for _mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"):

    @call("instructor", f"`Mode.{_mode}`" + (", its default" if _mode == "TOOLS" else ""))
    def _(server: Server, mode: str = _mode) -> None:
        assert isinstance(instruct(server, getattr(instructor.Mode, mode)), Verdict)


@call("instructor", "`Mode.JSON`", "deterministic")
def _(server: Server) -> None:
    assert isinstance(instruct(server, instructor.Mode.JSON, IN_JSON), Verdict)


# dspy


class Judge(dspy.Signature):
    """Is it right?"""

    code: str = dspy.InputField()
    verdict: Literal["accept", "reject"] = dspy.OutputField()


def judged(server: Server, model: str, adapter: Any) -> None:
    lm = dspy.LM(model, api_base=server.base, api_key=server.key, cache=False, max_tokens=150)
    with dspy.context(lm=lm, adapter=adapter):
        assert dspy.Predict(Judge)(code="pass").verdict in ("accept", "reject")


@call("dspy", "`LM`, `openai/NAME`")
def _(server: Server) -> None:
    lm = dspy.LM(f"openai/{TINY}", api_base=server.base, api_key=server.key, cache=False)
    assert lm("Is it right?", max_tokens=20)[0]


@call("dspy", "`Predict` by `JSONAdapter`, served as `gpt-4o-mini`")
def _(server: Server) -> None:
    judged(server, KNOWN, dspy.JSONAdapter())


@call("dspy", "`Predict` by `JSONAdapter`, `lm_studio/NAME`")
def _(server: Server) -> None:
    judged(server, f"lm_studio/{TINY}", dspy.JSONAdapter())


@call("dspy", "`Predict` as it comes, its fallback to JSON, served as `gpt-4o-mini`")
def _(server: Server) -> None:
    judged(server, KNOWN, None)


@pytest.mark.parametrize(("client", "name", "engine", "function"), CALLS)
def test_a_call(servers, client: str, name: str, engine: str, function: Call) -> None:
    outcome = function(servers[engine]) or "yes"
    outcomes.setdefault((client, name), {})[engine] = outcome
