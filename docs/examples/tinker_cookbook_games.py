"""nip's games in tinker-cookbook's loop: docs/howto/games-in-your-loop.md. Copy it."""

import asyncio
from itertools import groupby
from statistics import fmean

import chz
from tinker_cookbook.renderers import get_renderer, get_text_content
from tinker_cookbook.rl import types
from tinker_cookbook.tokenizer_utils import get_tokenizer

from nip_core.library import LiveEpisode, ModelAnswer


class Seat(types.Env):
    def __init__(self, episode, agent, renderer):
        self.episode, self.agent, self.renderer = episode, agent, renderer

    async def ask(self):
        request = await self.episode.next_request(self.agent)
        return request and self.renderer.build_generation_prompt(request["messages"])

    async def initial_observation(self):
        asyncio.current_task().add_done_callback(lambda _: self.episode.give_up())  # no seat waits
        prompt, stop = await self.ask(), self.renderer.get_stop_sequences()
        return (prompt, stop) if prompt else types.InitialObservationOverflow(0.0)  # never asked

    async def step(self, action, *, extra=None):
        text = get_text_content(self.renderer.parse_response(action)[0])
        self.episode.answer(self.agent, ModelAnswer(text, (extra or {}).get("stop_reason", "stop")))
        prompt, stop = await self.ask(), self.renderer.get_stop_sequences()
        masked = {"parse_error_masked": 1.0} if self.episode.find_mistake(self.agent) else {}
        return types.StepResult(0.0, not prompt, prompt or types.Observation.empty(), stop, masked)


@chz.chz
class Games(types.RLDatasetBuilder, types.RLDataset, types.EnvGroupBuilder):
    """The games of a run, those of a split, and, with `specs`, those of one problem: a group."""

    game: object  # a function, which returns a game
    trained: tuple[str, ...]
    frozen: dict
    model_name: str
    renderer_name: str
    batches: int
    split: str = "train"
    specs: tuple = ()
    live: list = chz.field(default_factory=list)

    async def __call__(self):
        return self, chz.replace(self, split="test", batches=1)

    def __len__(self):
        return self.batches

    def get_batch(self, index):
        groups = groupby(self.game().plan(self.split, index), key=lambda spec: spec.seed)
        return [chz.replace(self, specs=tuple(specs), live=[]) for _, specs in groups]

    async def make_envs(self):
        if self.live and len(self.trained) > 1:  # the others of its game have left
            raise RuntimeError("an agent can't play again alone: rollout_error_tolerance=False")
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name))
        live = [LiveEpisode(self.game(), spec, self.trained, self.frozen) for spec in self.specs]
        self.live.extend(live)
        return [Seat(episode, agent, renderer) for agent in self.trained for episode in live]

    async def compute_group_rewards(self, trajectory_group, env_group):
        ends = [(seat.agent, await seat.episode.finish()) for seat in env_group]
        pay = [(a, {} if end.failed else {f"reward/{a}": end.rewards[a]}) for a, end in ends]
        mean = {a: fmean([r for b, m in pay if b == a for r in m.values()] or [0]) for a, _ in pay}
        gain = [m[f"reward/{a}"] - mean[a] if m else 0.0 for a, m in pay]  # 0 trains nothing
        return [(r, m | {f"failed/{a}": float(not m)}) for r, (a, m) in zip(gain, pay, strict=True)]

    async def cleanup(self):
        while self.live:
            await self.live.pop().aclose()
