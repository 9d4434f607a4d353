"""Attacks by a model: the best of n of its texts, or a model that is trained against the judge.

find_attacker   the settings of the model that writes, of `--attacker` and the block `attacker`
open_writer     a model that writes, at its address or at a server of nip's own
play_trained    nip's own attack by training, with the judge in the verifier's seat
RecordedJudge   a judge whose every answer goes through the journal and the caps of an attack
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nip_core.errors import SettingsError
from nip_core.loop import train
from nip_core.parameters import HyperParameters, PureTextAgentParameters, load_parameters
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import Endpoint
from nip_core.servers.own_server import OwnServer, make_server_spec
from nip_judges.judges.chat_asking import ModelSeat, find_endpoint
from nip_judges.parts import Cell, Judge, JudgeAnswer, ShownText
from nip_judges.play.asking import Asker
from nip_judges.play.judged_texts import AttackParts
from nip_judges.seat.judge_service import choose_port, serve_judge
from nip_judges.seat.seat_attack import (
    attack_settings_for_judge,
    make_seat_settings,
    read_seat_cells,
    write_seat_problems,
)
from nip_judges.settings.judge_file import ASKING, JudgeFile
from nip_judges.writers.best_of_n import ModelWriter

OF_JUDGE = "judge"
"""The value of --attacker that means the judge's own model."""
_START_S = 900.0
_TEXT_TOKENS = 225


@dataclass(frozen=True)
class RecordedJudge:
    """A judge whose answers are kept by an `Asker`: none is paid twice, and the caps hold."""

    judge: Judge
    asker: Asker

    @property
    def name(self) -> str:
        return self.judge.name

    @property
    def digest(self) -> str:
        return self.judge.digest

    @property
    def accept_forms(self) -> Sequence[str]:
        return self.judge.accept_forms

    @property
    def is_paid(self) -> bool:
        return self.judge.is_paid

    @property
    def scores(self) -> bool:
        return self.judge.scores

    def compose(self, shown_text: ShownText) -> str:
        """Write the request as text."""
        return self.judge.compose(shown_text)

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Judge a text; each seed is an asking of its own."""
        return await self.asker.ask(self.judge, shown_text, seed)


def find_attacker(file: JudgeFile, name: str | None) -> dict[str, Any]:
    """Find the settings of the model that writes, as an agent's.

    By `--attacker NAME` alone it is a model of nip's own server; the block `attacker` names another
    place. Raises SettingsError where none is named.
    """
    if name == OF_JUDGE:
        if file.agent is None:
            raise SettingsError("--attacker judge: this judge asks no model; name another one")
        return {key: getattr(file.agent, key) for key in (*ASKING, "model_name")}
    block = file.attacker
    if block is None:
        if name is None:
            raise SettingsError(
                "--by needs the model that writes: --attacker MODEL, or a block attacker in "
                f"{file.path}"
            )
        return {"model_provider": "SelfHosted", "model_name": name}
    settings = {
        key: getattr(block, key)
        for key in block.model_fields_set
        if key not in ("key", "extra_body")
    }
    if name is not None:
        settings["model_name"] = name
    if settings.get("model_name") is None:
        file.refuse(("attacker",), "attacker.model_name is missing; name it, or --attacker MODEL")
    return settings


@contextlib.asynccontextmanager
async def open_writer(
    file: JudgeFile, name: str | None, folder: Path, *, around: bool
) -> AsyncIterator[ModelWriter]:
    """Open the model that writes. A server of nip's own is started in `folder`, where it needs one.

    Raises SettingsError where it can't be asked.
    """
    settings = {"max_tokens_per_message": _TEXT_TOKENS, **find_attacker(file, name)}
    agent = PureTextAgentParameters(freeze_agent=True, chat_format="alternating", **settings)
    key = file.judge.key if name == OF_JUDGE else (file.attacker.key if file.attacker else None)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            ChatClient(
                concurrency=file.concurrency, timeout_s=file.timeout_s, retries=5, follows=True
            )
        )
        if agent.provider.starts_server and agent.base_url is None:
            endpoint, place = await _start_server(stack, settings, folder), "own server"
        else:
            endpoint, place = find_endpoint(file, "attacker", agent, key), None
        sees = file.attacker_sees == "prompt"
        prompt = file.prompt_text if sees else None
        # The judge's own extra fields may hold its answers to the form of a verdict.
        extra = {} if name == OF_JUDGE or file.attacker is None else file.attacker.extra_body
        seat = ModelSeat(client, endpoint, agent, extra, place)
        yield ModelWriter(
            seat,
            judge_prompt=prompt,
            around=around,
            counts=name == OF_JUDGE,
        )


async def _start_server(
    stack: contextlib.AsyncExitStack, settings: Mapping[str, Any], folder: Path
) -> Endpoint:
    """Start a server for one model, which ends with the block."""
    parameters = load_parameters(
        {
            "run_name": "writer",
            "scenario": "arithmetic",
            "dataset": "arithmetic",
            "interaction_protocol": "adp",
            "agents": {
                "prover": {**settings, "freeze_agent": True},
                "verifier": {"is_random": True},
            },
            "rl": {"num_iterations": 0},
            # In double precision no company of a text changes it: the same seed, the same texts.
            "lm_server": {"options": {"dtype": "float64"}},
        }
    )
    spec = make_server_spec(parameters)
    assert spec is not None  # the model is SelfHosted and has no address
    server = OwnServer(spec, folder / "server", timeout_s=_START_S, environment=os.environ)
    stack.callback(server.stop)
    await server.ensure()
    return server.endpoint


async def play_trained(
    file: JudgeFile,
    parts: AttackParts,
    asker: Asker,
    *,
    attacker: str | None,
    steps: int | None,
    attack: Mapping[str, Any],
    run: str,
    run_store: str,
    folder: Path,
) -> list[Cell]:
    """Train an attacker against the judge, and give the cells of its one test on the test rows.

    The runs `run` and `run`-sneaky go on where they stopped. Raises as `nip_core.loop.train` does.
    """
    problems = write_seat_problems(
        folder / "seat", parts.rows.wrong_choosing, parts.rows.wrong_test
    )
    is_free = parts.check is not None and "free" in (file.surface or ("free",))
    with serve_judge(
        RecordedJudge(parts.judge, asker),
        check=parts.check,
        no_verdict=file.no_verdict,
        port=choose_port(file.digest),
        loop=asyncio.get_running_loop(),
    ) as service:
        game = make_seat_settings(
            run,
            problems,
            service,
            find_attacker(file, attacker),
            run_store=run_store,
            surface="free" if is_free else "around",
            judge_prompt=(file.prompt_text or "") if file.attacker_sees == "prompt" else "",
            settings={"rollouts": {"concurrency": file.concurrency}},
        )
        settings: HyperParameters = await attack_settings_for_judge(
            game, by="sneaky", steps=steps, attack=attack
        )
        await train(settings)
    label_by = "" if parts.check is None else parts.check.name
    cells = read_seat_cells(run_store, settings.run_name, label_by=label_by)
    return [replace(cell, kind="trained", name=f"{steps or 20} steps") for cell in cells]
