"""What counts as a decision and what is only talk about one; which part is for whom."""

import itertools
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from nip_core.game.answers import parsing
from nip_core.game.answers.decisions import InvalidDecision, MissingPart
from nip_core.game.answers.parsing import AnswerForm, InvalidResponse, parse_response
from nip_core.protocols import NO_DECISION
from nip_core.protocols.scales import SCALES, round_value

HEADERS = {"first": "Question for Expert_1:", "second": "Question for Expert_2:"}
TABLE = yaml.safe_load((Path(__file__).parent / "answers.yaml").read_text(encoding="utf-8"))
DOCS = Path(__file__).parents[2] / "docs" / "answers.md"


def form(scale="accept_reject", *, reasoning=False, headers=None):
    return AnswerForm(
        tuple(headers or ("main",)), headers or {}, SCALES.get(scale), has_reasoning=reasoning
    )


def meaning(text, form_):
    """As the tables give it."""
    try:
        move = parse_response(text, form_)
    except InvalidResponse:
        return "invalid"
    if move.decision == NO_DECISION:
        assert move.value is None
        return dict(move.messages)
    assert move.messages == {} and move.decision == round_value(move.value)
    (answer,) = (a for a, value in form_.scale.values.items() if value == move.value)
    return answer


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry["text"][:40])
def test_real_answers_mean_what_a_reader_would_say(entry):
    headers = HEADERS if entry.get("headers") else None
    form_ = form(
        entry.get("scale", "accept_reject"),
        reasoning=entry.get("reasoning", False),
        headers=headers,
    )
    means = entry["means"]
    if means == "message":
        means = {"message": entry["text"].strip()}
    if means != "invalid":
        ((kind, value),) = means.items()
        means = {
            "decision": lambda: value,
            "message": lambda: {"main": value},
            "messages": lambda: dict(zip(HEADERS, value, strict=True)),
        }[kind]()
    assert meaning(entry["text"], form_) == means, entry["why"]


def test_the_table_covers_every_scale_and_form():
    assert {e.get("scale", "accept_reject") for e in TABLE} == {*SCALES, "none"}
    keys = ("text", "scale", "reasoning", "headers")
    assert len({tuple(e.get(key) for key in keys) for e in TABLE}) == len(TABLE) >= 400


def test_the_examples_in_the_docs_are_true():
    rows = re.findall(r"^\| `(.+)` \| (\w+) \| (.+) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    assert len(rows) > 20
    for text, scale, means in rows:
        text = text.replace("⏎", "\n")
        found = meaning(text, form(scale))
        assert found == ({"main": text} if means == "a message" else means), text


# Laws.

ANSWERS = [(name, answer) for name, scale in SCALES.items() for answer in scale.values]


@st.composite
def decorated(draw, answer):
    """A line that decides for the answer, written in some usual way."""
    spell = draw(st.sampled_from([str, str.upper, str.title, lambda a: a.replace(" ", "_")]))
    around = draw(
        st.sampled_from(["{}", "**{}**", "_{}_", "`{}`", '"{}"', r"\boxed{{{}}}", "[{}]"])
    )
    label = draw(
        st.sampled_from(["Decision", "decision", "DECISION", "My final decision", "So my decision"])
    )
    mark = draw(st.sampled_from([":", " :", ":**", "：", ":\n\n", ":  ", " is:", "**:"]))
    lead = draw(st.sampled_from(["", "  ", "**", "### ", "- ", "1. ", "__"]))
    end = draw(
        st.sampled_from(
            ["", ".", "!", " ", "**", ".\n", ". The code says so.", ", because it is so"]
        )
    )
    before = draw(st.sampled_from(["", "The loop ends.\n\n", "I weighed it all.\n", "\n\n"]))
    after = draw(st.sampled_from(["", "\n\nThe loop says so.", "\n", "\n> What did you say?"]))
    return f"{before}{lead}{label}{mark} {around.format(spell(answer))}{end}{after}"


@pytest.mark.parametrize("reasoning", [False, True])
@settings(max_examples=examples(300))
@given(data=st.data())
def test_every_answer_of_every_scale_is_understood_in_many_ways(reasoning, data):
    name, answer = data.draw(st.sampled_from(ANSWERS))
    text = data.draw(decorated(answer))
    assert meaning(text, form(name, reasoning=reasoning)) == answer


QUOTED = [
    "> Decision: {}",
    'You wrote "Decision: {}" before.',
    'You wrote:\n"Decision: {}"',
    "“Decision: {}” is your claim.",
    "Expert_2: Decision: {}",
    "The expert wrote:\nDecision: {}",
    "The expert says\n```\nDecision: {}\n```\nwhich I doubt.",
    "~~Decision: {}~~",
    "This is not my decision: {}",
    "I never said\nDecision: {}\nto anybody.",
    "Is it decided? Decision: {}",
]
NEGATED = [
    "Decision: not {}",
    "Decision: I do not {}",
    "Decision: never {}",
    "Decision: can't {}",
    "My decision is not to {}",
    "Decision: {}? No.",
    "Decision: {} - not!",
    "Decision: {}, no, wait",
    "Decision: {} is not what I say",
    "Decision: ~~{}~~",
    "Decision: anything but {}",
    "Decision: {}\nWait, that is wrong.",
]


@pytest.mark.parametrize("reasoning", [False, True])
@settings(max_examples=examples(300))
@given(data=st.data())
def test_no_quotation_or_negation_is_a_decision(reasoning, data):
    name, answer = data.draw(st.sampled_from(ANSWERS))
    talk = st.sampled_from(["Why n?", "The loop ends.", "", 'I have looked at "f".'])
    text = data.draw(talk) + "\n" + data.draw(st.sampled_from(QUOTED + NEGATED)).format(answer)
    if not text.endswith("Wait, that is wrong."):
        text += "\n" + data.draw(talk)
    found = meaning(text, form(name, reasoning=reasoning))
    assert found == "invalid" or found == {"main": text.strip()}


LABELS = [
    *("Decision: {}", "Verdict: {}", "**Verdict:** {}", "Conclusion: {}", "Final answer: {}", "{}"),
    *("My verdict is {}", "The answer is \\boxed{{{}}}", "<decision>{}</decision>", "Judgment: {}"),
    *('{{"decision": "{}", "reason": "it holds"}}', "Decision: {} - with that it is said", "# {}"),
    *("Verdict: **{}**.", "It holds. Decision: {}", "It fails.\n\n{}", "```\nVerdict: {}\n```"),
]
MEANT = ["{}", "**{}**", "`{}`", "{}.", "{}!", "I {} the solution", "{}, because it is so"]
OPPOSED = [  # what means the opposite of a verdict, or none
    *("not {}", "do not {}", "I cannot {} this", "never {}", "I refuse to {}", "anything but {}"),
    *("{} is wrong", "~~{}~~", "{} - no, wait", "{}? No", "{} would be wrong", "hardly {}"),
    *("{}, says the expert", "{}, if n is 0", "{} (not final)", "{}, probably", "{} or {other}"),
]
SETTINGS = [
    *("{}", "{}\n", "{}\n\nThe loop says so.", "The loop ends.\n\n{}", "{}\n\nIs it so?", "- {}"),
    *("> {}", "You wrote:\n{}", "Expert_1: {}", 'You wrote "{}".', "Why do you say {}?", "Not {}"),
    *("{}\nI cannot {other} this.", "I cannot {other} this.\n{}", "{}\nI would not {other} it."),
    *("If it holds:\n{}", "The instructions say:\n{}", "<think>{other}</think>{}", "| {} |"),
    *("Question for Expert_1: {}\nQuestion for Expert_2: {}", "Question: {}", "Answer: {}"),
]


@settings(max_examples=examples(800), deadline=None)
@given(
    word=st.sampled_from(["accept", "reject"]),
    spell=st.sampled_from([str, str.upper, str.title]),
    pieces=st.tuples(*map(st.sampled_from, (SETTINGS, LABELS, [*MEANT, *OPPOSED]))),
    reasoning=st.booleans(),
    headers=st.sampled_from([None, HEADERS]),
)
def test_whatever_stands_around_it_a_verdict_is_never_taken_for_its_opposite(
    word, spell, pieces, reasoning, headers
):
    other = {"accept": "reject", "reject": "accept"}[word]
    frame, label, claim = pieces
    text = claim.replace("{other}", other).replace("{}", spell(word))
    text = label.replace("{{", "\0").replace("}}", "\1").replace("{}", text)
    text = frame.replace("{other}", other).replace("{}", text)
    text = text.replace("\0", "{").replace("\1", "}")
    read = meaning(text, form(reasoning=reasoning, headers=headers))
    assert read != other
    if claim in OPPOSED:
        assert read != word


@settings(max_examples=examples(500), deadline=None)
@given(
    data=st.data(),
    frame=st.sampled_from(["{}", "{}\n", "The loop ends.\n\n{}", "<think>Hm.</think>\n{}"]),
    label=st.sampled_from([label for label in LABELS if label not in ("It fails.\n\n{}", "# {}")]),
)
def test_a_bare_answer_behind_any_label_is_that_answer_or_asked_again(data, frame, label):
    name, answer = data.draw(st.sampled_from(ANSWERS))
    text = frame.replace("{}", label.format(answer))
    assert meaning(text, form(name)) in (answer, "invalid")


FRAGMENTS = st.sampled_from(
    [
        *(word for text in QUOTED + NEGATED for word in re.split(r"(\W)", text) if word),
        *(word for text in LABELS for word in re.split(r"(\W)", text) if word),
        *HEADERS.values(),
        *("accept", "reject", "7", "10", "agree", "dıſagree", "\n", "Question:", "Answer:"),
        *("<think>", "</think>", "\0", "\ud800", "\u200b", "\r", "\x85", "\u2028", "\\boxed{"),
    ]
)


@settings(max_examples=examples(400))
@given(
    st.one_of(
        st.text(st.characters(exclude_categories=())), st.lists(FRAGMENTS, max_size=25).map("".join)
    ),
    st.sampled_from([None, *SCALES]),
    st.booleans(),
    st.sampled_from([None, HEADERS]),
)
def test_any_text_is_messages_a_decision_or_invalid(text, scale, reasoning, headers):
    form_ = form(scale, reasoning=reasoning, headers=headers)
    try:
        move = parse_response(text, form_)
    except InvalidResponse as response:
        assert response.reason.isprintable()
        return
    if move.decision == NO_DECISION:
        assert tuple(move.messages) == form_.channels
        assert all(message and message in text for message in move.messages.values())
    else:
        assert move.messages == {} and move.value in form_.scale.values.values()


@given(st.text().filter(lambda text: any(c.isalnum() for c in text)))
def test_any_prover_text_is_a_message(text):
    assert parse_response(text, form(None)).messages == {"main": text.strip()}


@given(st.data())
def test_the_order_of_parts_does_not_matter(data):
    count = data.draw(st.integers(2, 5))
    headers = {f"c{i}": f"To Expert_{i}:" for i in range(count)}
    bodies = data.draw(
        st.lists(
            st.text("ab \n.?", min_size=1).filter(lambda b: b.strip(" \n")),
            min_size=count,
            max_size=count,
        )
    )
    written = [f"{h}{b}" for h, b in zip(headers.values(), bodies, strict=True)]
    expected = {c: part.strip() for c, part in zip(headers, written, strict=True)}
    for order in itertools.permutations(written):
        assert (
            parse_response("\n".join(("Well.", *order)), form(headers=headers)).messages == expected
        )


def test_headers_without_a_colon_or_letters_work_as_well():
    headers = {"a": "@judge", "b": "->"}
    assert parse_response("@Judge, why?\n-> what?", form(headers=headers)).messages == {
        "a": "@Judge, why?",
        "b": "-> what?",
    }


def test_the_kinds_of_invalid_answers_can_be_told_apart():
    with pytest.raises(InvalidDecision, match="decision"):
        parse_response("Decision: maybe", form())
    with pytest.raises(MissingPart, match="no part that begins with 'Question for Expert_2:'"):
        parse_response("Question for Expert_1: a", form(headers=HEADERS))
    with pytest.raises(InvalidResponse, match="half a surrogate pair at character 1"):
        parse_response("a\udfff", form(None))


PIECES = [
    "Decision: accept", "decision", "Question:", "Question for Expert_1:", "Answer: it is", "<think>",
    "</think>", "```", ">", "accept", "Verdict: accept", "{", "}", '{"decision": "accept"}', "result", '"', "\n", " ", "\0", "\t", "\x1c", "\x1f", "\u200b", "\xa0", "é", "\udc80", "x",
]  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(
    text=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join),
    scale=st.sampled_from([None, "accept_reject", "out_of_10"]),
    reasoning=st.booleans(),
)
def test_a_text_that_is_taken_whole_at_once_is_what_a_full_reading_makes_of_it(
    text, scale, reasoning
):
    form_ = form(scale, reasoning=reasoning)
    if parsing._is_all_message(text, form_):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parsing, "_is_all_message", lambda *_: False)
            assert meaning(text, form_) == {"main": text.strip()}


@pytest.mark.parametrize("text", ["Question: why?", "x", " \n It loops. \n"])
def test_most_messages_are_taken_whole_at_once(text):
    assert parsing._is_all_message(text, form(None)) and parsing._is_all_message(text, form())


LONG = [
    "\n", "*", " ", "a", "7", '"', "`", ">", "<", "<|a", "\\text{", "not ", "and ", "only and ", "1. ", "if ",
    "decision\n", "decision is\n", "Decision:\n", "Decision: accept\n", "Decision: accept ", "```\n",
    "'\"\n", "I do not ", "Verdict: accept\n", "x. Verdict: accept ", "- Decision: accept\n", "so ", "{", "[",
    "answer:\n", "I accept ", "result: ", "not accept ", "\\boxed{accept}\n", "\\boxed{", '{"decision":', "→ ", "Question:\n", "Question for Expert_1:\n", "</think>\n", "\u200b", "wrote ",
]  # fmt: skip


@pytest.mark.timeout(10)  # what takes quadratic time would take much longer
@pytest.mark.parametrize("piece", LONG, ids=repr)
def test_the_longest_answers_of_any_kind_come_to_an_end(piece):
    forms = {"": form(reasoning=True, headers=HEADERS), "Decision: accept, ": form()}
    for before, form_ in forms.items():
        text = before + piece * (100_000 // len(piece)) + "\nDecision: accept"
        assert meaning(text, form_) is not None
