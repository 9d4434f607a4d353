"""Every chat has a form that strict chat templates accept, in which nothing is lost."""

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.game.chat_format import YOUR_TURN, format_chat

STRICT = ("alternating", "alternating_no_system")

# Two shapes that published models have. The first takes a system message only at the beginning,
# the second none at all; both insist on user and assistant in turn, user first.
TAKES_SYSTEM = """
{%- if messages[0].role == 'system' -%}<<SYS>>{{ messages[0].content }}<</SYS>>
{%- set rest = messages[1:] -%}{%- else -%}{%- set rest = messages -%}{%- endif -%}
{%- for message in rest -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{%- if message.role == 'user' -%}[INST]{{ message.content }}[/INST]
{%- elif message.role == 'assistant' -%}{{ message.content }}</s>
{%- else -%}{{ raise_exception('only user and assistant roles are supported') }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and (not rest or rest[-1].role != 'user') -%}
{{ raise_exception('the last message must be from the user') }}{%- endif -%}
"""
REFUSES_SYSTEM = """
{%- if messages[0].role == 'system' -%}{{ raise_exception('System role not supported') }}
{%- endif -%}{{ '<bos>' }}
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate') }}{%- endif -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content }}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}<start_of_turn>model{%- endif -%}
"""


def refuse(message):
    raise jinja2.TemplateError(message)


ENVIRONMENT = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
ENVIRONMENT.globals["raise_exception"] = refuse
TEMPLATE = {
    "alternating": ENVIRONMENT.from_string(TAKES_SYSTEM),
    "alternating_no_system": ENVIRONMENT.from_string(REFUSES_SYSTEM),
}


def laid_out(form, chat, *, generation):
    return TEMPLATE[form].render(messages=chat, add_generation_prompt=generation)


contents = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
messages = st.one_of(
    st.builds(lambda c: {"role": "assistant", "content": c}, contents),
    st.builds(lambda c: {"role": "system", "content": c}, contents),
    st.builds(lambda c: {"role": "user", "content": c}, contents),
    st.builds(
        lambda c, n: {"role": "user", "content": c, "name": n},
        contents,
        st.sampled_from(("Expert_1", "Expert_2", "Verifier")),
    ),
)
chats = st.builds(
    lambda system, rest: [{"role": "system", "content": system}, *rest],
    contents,
    st.lists(messages, max_size=8),
)


def said(message):
    """How a message stands in the text of an alternating chat."""
    speaker = "System" if message["role"] == "system" else message.get("name")
    return f"{speaker}: {message['content']}" if speaker else message["content"]


def test_an_example_of_each_form():
    chat = [
        {"role": "system", "content": "You are the verifier."},
        {"role": "assistant", "content": "Question: why?"},
        {"role": "user", "content": "Answer: so.", "name": "Expert_1"},
        {"role": "user", "content": "Answer: not so.", "name": "Expert_2"},
        {"role": "system", "content": "Decide now."},
    ]
    assert format_chat(chat, "named", is_request=True) == chat
    rest = [
        {"role": "user", "content": YOUR_TURN},
        {"role": "assistant", "content": "Question: why?"},
        {
            "role": "user",
            "content": "Expert_1: Answer: so.\n\nExpert_2: Answer: not so.\n\nSystem: Decide now.",
        },
    ]
    assert format_chat(chat, "alternating", is_request=True) == [chat[0], *rest]
    assert format_chat(chat, "alternating_no_system", is_request=True) == [
        {"role": "user", "content": "You are the verifier."},
        *rest[1:],
    ]


@given(chat=chats, asked=st.booleans(), form=st.sampled_from(STRICT))
def test_strict_templates_take_every_chat(chat, asked, form):
    formed = format_chat(chat, form, is_request=asked)
    text = laid_out(form, formed, generation=asked)
    for message in formed:
        assert message["content"] in text and set(message) == {"role", "content"}


@pytest.mark.parametrize("form", STRICT)
def test_the_strict_templates_of_these_tests_refuse_what_was_not_normalised(form):
    named = [
        {"role": "system", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    with pytest.raises(jinja2.TemplateError):
        laid_out(form, named, generation=True)


@given(chat=chats, asked=st.booleans(), form=st.sampled_from(STRICT))
def test_nothing_is_lost_and_nothing_is_added_but_a_turn_to_fill(chat, asked, form):
    """The user messages are what was said between two answers, whole, in order, by whom."""
    formed = format_chat(chat, form, is_request=asked)
    spans: list[list[str]] = [[]]
    for message in chat[1:]:
        if message["role"] == "assistant":
            spans.append([])
        else:
            spans[-1].append(said(message))
    if form == "alternating":
        assert formed[0] == chat[0]
    else:
        spans[0].insert(0, chat[0]["content"])
    if not asked and len(spans) > 1 and not spans[-1]:
        spans.pop()  # the chat ends with the agent's own answer
    users = [m["content"] for m in formed if m["role"] == "user"]
    assert users == ["\n\n".join(span) or YOUR_TURN for span in spans]
    assert [m for m in formed if m["role"] == "assistant"] == [
        m for m in chat if m["role"] == "assistant"
    ]


@given(chat=chats, asked=st.booleans(), form=st.sampled_from(("named", *STRICT)))
def test_a_normalised_chat_stays_as_it_is(chat, asked, form):
    formed = format_chat(chat, form, is_request=asked)
    assert format_chat(formed, form, is_request=asked) == formed


@given(chat=chats, form=st.sampled_from(("named", *STRICT)), data=st.data())
def test_the_beginning_of_a_chat_has_the_beginning_of_its_form(chat, form, data):
    """Cut before an answer, the form of the whole is the form of what was asked for then."""
    answers = [i for i, m in enumerate(chat) if m["role"] == "assistant"]
    if not answers:
        return
    k = data.draw(st.integers(0, len(answers) - 1))
    asked = format_chat(chat[: answers[k]], form, is_request=True)
    whole = format_chat(chat, form)
    places = [i for i, m in enumerate(whole) if m["role"] == "assistant"]
    assert whole[: places[k]] == asked


@given(chat=chats)
def test_the_chat_that_was_given_is_not_changed(chat):
    before = [dict(message) for message in chat]
    for form in ("named", *STRICT):
        format_chat(chat, form, is_request=True)
    assert chat == before
