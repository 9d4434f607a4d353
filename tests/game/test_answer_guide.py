"""A guided answer has its form: what a grammar allows is read, and ends within its tokens."""

from random import Random

import pytest

pytest.importorskip("llguidance")

from nip_core.game.answer_guide import least_tokens, write_guide
from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import lacks_decision, parse_response
from nip_core.game.render import Game
from nip_core.parameters import load_parameters
from nip_core.protocols import NO_DECISION
from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.guided import begin_matching, import_llguidance, write_lark_grammar
from nip_lm_server.engines.scripted.drawn_answers import _Bytes

END = 256
PROTOCOLS = ("nip", "adp", "debate", "mnip", "merlin_arthur", "solo_verifier")
# What a small model might say of all words: those that decide, and those of the form.
WORDS = [
    "accept",
    "reject",
    "Accept",
    "the",
    "solution",
    "because",
    "is",
    "right",
    "wrong",
    "I",
    "Decision:",
    "Question:",
    "Answer:",
    "so",
    "it",
    "if",
    "not",
    "f(0)",
    "returns",
    "1",
    "Expert_1:",
    "should",
    "why",
    "```",
    ">",
    "maybe",
    "**reject**",
    "would",
]


def forms(protocol, version, scale="accept_reject"):
    """The forms of all turns of a protocol, each with the tokens that it may have."""
    game = Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "x",
                "interaction_protocol": protocol,
                "code_validation": {"system_prompt_version": version},
                "protocol_common": {"verifier_decision_scale": scale},
                "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
            }
        )
    )
    for round_ in (0, 1, game.protocol.max_message_rounds - 1):
        for agent in game.protocol.movers(round_, 0, []):
            yield game.form(agent, round_, 0, [])


def begin(grammar):
    library = import_llguidance()
    vocabulary = library.LLTokenizer(library.TokenizerWrapper(_Bytes()))
    return begin_matching(vocabulary, write_lark_grammar(grammar), "structured_outputs")


def babble(grammar, most, random):
    """Say words of a small model as long as the grammar takes them, a byte a token."""
    matcher, said, word = begin(grammar), bytearray(), []
    while not matcher.is_stopped() and len(said) < most:
        allowed = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
        if allowed == [END] or (END in allowed and random.random() < 0.1):
            break
        word = word or list(b"\n" if random.random() < 0.2 else f"{random.choice(WORDS)} ".encode())
        if word[0] not in allowed:
            word = [random.choice([token for token in allowed if token != END])]
        assert matcher.consume_token(word[0]), matcher.get_error()
        said.append(word.pop(0))
    return said.decode("utf-8", "ignore"), matcher.is_accepting()


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_whatever_is_said_within_a_guide_is_read_and_ends_in_time(protocol, version):
    random, read, count = Random(f"{protocol} {version}"), 0, 0
    for form in forms(protocol, version):
        most = least_tokens(form) + 60
        grammar = write_guide(form, most, 30)
        for _ in range(4):
            text, is_whole = babble(grammar, most, random)
            assert is_whole, (grammar, text)
            count += 1
            try:
                move = parse_response(text, form)
            except InvalidResponse:
                continue  # a player of this kind may contradict itself even in the right form
            assert not lacks_decision(move, form), text
            assert form.scale is not None or move.decision == NO_DECISION
            read += 1
    assert read >= 0.8 * count


@pytest.mark.parametrize("scale", ["accept_reject", "likert_scale_5", "out_of_100"])
@pytest.mark.parametrize("version", ["v1", "v2", "short"])
def test_a_guide_takes_the_lines_that_the_prompts_ask_for_and_no_others(version, scale):
    first = next(forms("nip", version, scale))
    last = next(forms("solo_verifier", version, scale))
    assert last.must_decide and not first.must_decide
    before = "It is so.\n" if first.has_reasoning else ""

    def takes(form, text):
        matcher = begin(write_guide(form, 400, 100))
        return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()

    for answer in (*first.scale.values,)[:: max(1, len(first.scale.values) - 1)]:
        assert takes(first, f"{before}Decision: {answer}")
        assert takes(last, f"{before}Decision: {answer}")
    assert takes(first, f"{before}Question: Does f(0) hold?")
    assert not takes(last, f"{before}Question: Does f(0) hold?")
    assert not takes(first, f"{before}Decision: perhaps")
    assert not takes(first, f"{before}Decision: {answer}, I think")
    assert not takes(first, "I accept the solution.")


def test_a_decision_that_would_not_be_registered_yet_is_not_allowed():
    parameters = load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "interaction_protocol": "nip",
            "nip_protocol": {"max_message_rounds": 5, "min_message_rounds": 3},
            "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
        }
    )
    game = Game(parameters)
    grammars = [write_guide(game.form("verifier", r, 0, []), 200, 60) for r in (0, 2, 4)]
    assert ["Decision: " in grammar for grammar in grammars] == [False, True, True]
    assert ["Question: " in grammar for grammar in grammars] == [True, True, False]


def test_an_answer_with_too_few_tokens_for_its_form_is_known_beforehand():
    for protocol in PROTOCOLS:
        for version in ("v1", "v2"):
            for form in forms(protocol, version):
                matcher = begin(write_guide(form, least_tokens(form), 200))
                assert not matcher.is_error()
                assert least_tokens(form) < 150


def test_the_deterministic_engine_answers_in_a_guide_and_keeps_replies_that_fit():
    from nip_lm_server.engines.scripted.drawn_answers import fit

    for form in forms("debate", "v2"):
        grammar = write_guide(form, 300, 60)
        request = GenerationRequest("m", grammar=grammar)
        for seed in range(3):
            drawn = fit(request, "no such form", Random(seed), 300)
            parse_response(drawn, form)
            assert fit(request, drawn, Random(9), 300) == drawn
