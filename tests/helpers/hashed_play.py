"""A player of any protocol that answers by a hash of the request, and what holds of every game.

Players   a script for `scripted_server`
check     what holds of what was played
"""

from collections import Counter
from typing import Any

from in_memory import InMemory
from playing import agent_of

from nip_core.evaluation.episode_transcripts import transcripts_from_tables
from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.transcripts_markdown import transcripts_markdown
from nip_core.game.answer_rows import AnswerPlace
from nip_core.hashing import derive_seed
from nip_core.parameters import HyperParameters
from nip_core.protocols.scales import SCALES
from nip_core.trainers.expert_iteration import choose_examples

HEADERS = (
    "Question for Expert_1:",
    "Question for Expert_2:",
    "To Verifier_1:",
    "To Verifier_2:",
    "To everyone:",
    "To Expert_1 alone:",
)


class Players:
    """Answers by a hash of the request: some invalid at first, some decisions, else texts that
    have every part that any protocol asks for. A prover is never silent but where it may be."""

    def __init__(self) -> None:
        self.parameters: HyperParameters | None = None
        self.seen: Counter[str] = Counter()

    def __call__(self, body: dict[str, Any]) -> Any:
        assert self.parameters is not None
        agent, messages = agent_of(body), body["messages"]
        draw = derive_seed(agent, messages) % 100
        turn = derive_seed(agent, messages, "turn")
        self.seen[f"{turn}"] += 1
        common = self.parameters.protocol_common
        if draw < 15 and agent.startswith("prover") and common.prover_invalid_response_penalty:
            return ""  # in every attempt
        is_told = "which is not shown here, could not be used" in messages[-1]["content"]
        if draw < 30 and self.seen[f"{turn}"] == 1 and not is_told:
            return {"text": "", "logprobs": {"content": []}}
        if draw < 60 and not agent.startswith("prover"):
            answers = list(SCALES[common.verifier_decision_scale].values)
            text = f"So.\nDecision: {answers[turn % len(answers)]}"
        else:
            parts = [f"{header} loop {turn % 97}?" for header in HEADERS]
            text = "\n".join(["I think.", "Question: why?", "Answer: so.", *parts])
        token = {"token": text, "logprob": -0.5, "top_logprobs": []}
        return {"text": text, "logprobs": {"content": [token]} if body.get("logprobs") else None}


def check(played: Any, bodies: list[dict[str, Any]]) -> None:
    """What holds of every game."""
    parameters, game = played.parameters, played.game
    shown = {k: v for k, v in parameters.to_dict().items() if "protocol" in k or k == "agents"}
    for episode in played.episodes:
        assert episode["outcome"] in ("finished", "terminated"), (episode["error"], shown)
        assert (episode["decision"] == 2) == (episode["outcome"] == "terminated"), shown
        assert (episode["decision_value"] is None) == (episode["decision"] == 2), shown
        assert tuple(played.rewards(episode["problem"])) == game.protocol.agent_names
    for body in bodies:
        roles = [message["role"] for message in body["messages"]]
        form = parameters.model_agents[agent_of(body)].chat_format
        if form == "alternating":
            assert roles == ["system", *["user", "assistant"] * len(roles)][: len(roles)], shown
        elif form == "alternating_no_system":
            assert roles == [*["user", "assistant"] * len(roles)][: len(roles)], shown
        if form != "named":
            assert roles[-1] == "user", shown
    tables = played.tables()
    asked = {(agent_of(body), body["seed"]): body["messages"] for body in bodies}
    rows = {row["key"]: row for row in played.shard.generations}
    seeds = {spec.key: spec for spec in played.specs}
    for group in parameters.groups:
        agents = parameters.groups[group]
        for example in choose_examples(game, group, 0, InMemory((tables,)), agents).examples:
            last = rows[example.generations[-1]]
            # What is trained has no hint, as the first chat of the turn; or it is what was asked.
            drops = parameters.model_agents[last["agent"]].train_hints == "drop"
            is_first = drops and parameters.gives_hint(last["agent"])
            place = (last["round"], last["agent"], 0 if is_first else last["attempt"])
            seed = seeds[example.episode].generation_seed(parameters.seed, AnswerPlace(*place))
            *prompt, answer = example.messages
            assert prompt == asked[last["agent"], seed], shown
            assert answer == {"role": "assistant", "content": last["text"]}, shown
    assert evaluate(tables.episodes, tables.generations).failed_rate == 0
    found = transcripts_from_tables(tables.episodes, tables.generations, 2, 0, game.protocol)
    for transcript in found:
        for message in transcript.messages:
            sent = message.invalid_reason is None and message.decision == 2
            assert bool(message.channels) == sent, shown
    assert transcripts_markdown(found, 2)
