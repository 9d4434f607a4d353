"""The game as an environment of `verifiers`: two seats, both played by the run's model.

`vf-eval nine-turns` finds it by its name on the path. Its harness makes each call in the process of
the evaluation, as the project allows; the one that the project has for chats, `null`, starts a
process for every turn.
"""

import functools
from collections.abc import Iterable

import httpx
import verifiers.v1 as vf
from game_texts import SYSTEM, TURNS, problem
from verifiers.v1.clients import ModelContext
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult, Runtime

__all__ = ["GameEnv", "GameTaskset", "InProcess"]


@functools.cache
def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))


class InProcess(vf.Harness[vf.HarnessConfig]):
    """One call per segment, without a program of its own."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        answer = await _client().post(
            f"{endpoint}/chat/completions",
            json={"model": ctx.model, "messages": messages},
            headers={"Authorization": f"Bearer {secret}"},
        )
        answer.raise_for_status()
        return ProgramResult(exit_code=0, stdout="", stderr="")


class GameTasksetConfig(vf.TasksetConfig):
    games: int = 8


class GameTaskset(vf.Taskset[vf.Task, GameTasksetConfig]):
    """One task for each game."""

    def load(self) -> Iterable[vf.Task]:
        for number in range(self.config.games):
            yield vf.Task(vf.TaskData(prompt=problem(number)))


class GameConfig(vf.EnvConfig):
    verifier: vf.AgentConfig = vf.AgentConfig(runtime={"type": "subprocess"})
    prover: vf.AgentConfig = vf.AgentConfig(runtime={"type": "subprocess"})


class GameEnv(vf.Env[GameConfig]):
    """The verifier asks, the prover answers, in turn."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        seats = {
            name: vf.Task(
                vf.TaskData(idx=task.data.idx, system_prompt=text + "\n\n" + task.data.prompt_text)
            )
            for name, text in SYSTEM.items()
        }
        async with (
            agents.verifier.interaction(seats["verifier"]) as verifier,
            agents.prover.interaction(seats["prover"]) as prover,
        ):
            asked = await verifier.turn("Begin.")
            for _ in range(TURNS // 2):
                answer = await prover.turn(asked.last_reply)
                asked = await verifier.turn(answer.last_reply)
