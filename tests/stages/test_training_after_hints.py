"""A run whose agents answer invalidly at first: what its jobs are sent, with a real server."""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from served_here import KEY, Here, serve
from small_game import write_config
from viewing import client_of

from nip_core.loop import directly, go_on
from nip_core.parameters import load_parameters
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.session import Session
from nip_core.stages import measuring
from nip_core.stages.publishing import publish
from nip_core.trainers.dataset import open_dataset
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE, load_replies

HINT = "which is not shown here, could not be used"


class Remembering(DeterministicEngine):
    """Keeps what it has answered to which chat."""

    def __init__(self, replies: Path) -> None:
        super().__init__("sim", load_replies(replies))
        self.said: dict[str, set[str]] = defaultdict(set)

    async def generate(self, request: Any) -> Any:
        result = await super().generate(request)
        self.said[_write(request.messages)] |= {choice.text for choice in result.choices}
        return result


def _write(chat: Any) -> str:
    kept = ("role", "content", "name")
    return json.dumps([{k: m[k] for k in kept if m.get(k) is not None} for m in chat])


def replies(folder: Path) -> Path:
    """Those of every game, but one verdict of three is none, until a hint asks for one."""
    rules = yaml.safe_load(DEFAULT_FILE.read_text())
    decides = rules["rules"][0]["when"]["system_contains"]
    verdicts = [{"text": f"Decision: {word}"} for word in ("accept", "reject")]
    first = [{"when": {"last_contains": HINT}, "replies": verdicts}]
    first += [
        {"when": {place: decides}, "replies": [*verdicts, {"text": "Decision: maybe"}]}
        for place in ("system_contains", "last_contains")
    ]
    path = folder / "replies.yaml"
    path.write_text(yaml.safe_dump(rules | {"rules": first + rules["rules"]}))
    return path


async def lines_of(here: Here, run: RunStore, group: str) -> list[dict[str, Any]]:
    async with here.http.get(f"/v1/fine_tuning/jobs/{run.read_json(run.job(0, group))['id']}") as r:
        job = await r.json()
    assert job["status"] == "succeeded"
    async with here.http.get(f"/v1/files/{job['training_file']}/content") as answer:
        return [json.loads(line) for line in (await answer.read()).splitlines()]


async def trains_alone(stage: Callable[..., Any], session: Session, *arguments: Any) -> Any:
    """Run a part of the loop, but no metrics and no report."""
    if stage in (publish, measuring.measure):
        return {}
    return await directly(stage, session, *arguments)


async def test_a_job_is_sent_answers_behind_the_chats_that_asked_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIP_API_KEY", KEY)
    agent = {"model_provider": "SelfHosted", "model_name": "sim", "max_tokens_per_message": 32}
    engine = Remembering(replies(tmp_path))
    async with serve(tmp_path / "server", engine) as here:
        config = write_config(
            tmp_path,
            lm_server={"url": here.url},
            agents={"_default": {**agent, "retry_hint": True, "train_hints": "keep"}},
            rl={"num_iterations": 1, "rollouts_per_iteration": 20, "num_epochs": 1},
            pure_text_ei={"reward_threshold": -100.0},
            text_rl={"test_scheme": "none"},
        )
        async with open_session(load_parameters(config)) as session:
            await go_on(session, trains_alone)
        run = RunStore(open_store(tmp_path / "runs"), "small")
        lines = await lines_of(here, run, "verifier")
    # 1. Each answer is learned once, and was given to the chat before it.
    learned, hinted = 0, 0
    for line in lines:
        for i, message in enumerate(line["messages"]):
            if message["role"] == "assistant" and message.get("weight", 1):
                before = line["messages"][:i]
                assert message["content"] in engine.said[_write(before)]
                learned += 1
                hinted += HINT in str(before)
    assert learned == 20 * 2 and len(lines) == 20 + hinted and 2 < hinted < 18
    # 2. An episode shows which of its answers each example teaches.
    dataset = open_dataset(run.store, run.dataset(0, "verifier"))
    row = next(row for row in dataset.rows() if row["weights"] is not None)
    page = client_of(tmp_path / "runs").get(f"/runs/small/episodes/{row['episode']}?tab=facts")
    rows = re.findall(r"<td>verifier</td><td>threshold</td><td>([0-9, ]*)</td>", page.text)
    assert sorted(rows) == ["0", "2"]
