"""A program written for OpenPipe ART: teach a model to read an expert's report.

A report names an operation first, and the operation alone decides whether "Decision: accept" or
"Decision: reject" is right. Every step samples decisions on fresh reports, rewards the right ones
with 1, and trains. Printed is the mean reward on held-out reports, before and after.

    nip serve --engine embedded --model tiny --state ./server-state      # in another terminal
    NIP_API_KEY=... .art-env/bin/python docs/examples/art_program.py

Only the line that makes the backend is not ART's own.
"""

import argparse
import asyncio
import json
import random

import art
from nip_core.fine_tuning.art.art_backend import LmServerBackend

RIGHT = {
    "times": "accept", "plus": "accept", "above": "accept",
    "minus": "reject", "below": "reject", "last": "reject",
}  # fmt: skip


def draw_reports(seed: int, count: int) -> list[str]:
    """`count` different reports."""
    draw = random.Random(seed)
    reports: dict[str, None] = {}
    while len(reports) < count:
        first, second = draw.sample(list(RIGHT), 2)
        n, m = draw.randrange(29), draw.randrange(29)
        end = draw.choice(("match", "differ"))
        reports[f"Answer: asked {first} {n} code {n} ok, {second} {m} code {m} ok, they {end}"] = (
            None
        )
    return list(reports)


async def rollout(model: art.TrainableModel, report: str, seed: str) -> art.Trajectory:
    """One decision on one report, with its reward."""
    messages: art.Messages = [
        {"role": "user", "name": "Expert", "content": report},
        {"role": "system", "content": "No more questions. Decide now."},
    ]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=messages,
        max_tokens=12,
        temperature=1.0,
        seed=random.Random(f"{seed} {report}").getrandbits(31),
        logprobs=True,
    )
    choice = completion.choices[0]
    right = RIGHT[report.split()[2]]
    return art.Trajectory(
        messages_and_choices=[*messages, choice],
        reward=float(choice.message.content == f"Decision: {right}"),
        metadata={"scenario_id": report},
    )


async def mean_reward(model: art.TrainableModel, reports: list[str], seed: int) -> float:
    """On held-out reports; logged as ART's split `val`."""
    trajectories = await art.gather_trajectories(
        (rollout(model, report, f"{seed}") for report in reports), pbar_desc=None
    )
    await model.log(trajectories, split="val")
    return sum(trajectory.reward for trajectory in trajectories) / len(trajectories)


async def main() -> None:
    """Train for some steps and print what came of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--state", default=".art/lm_server", help="where steps and jobs are kept")
    parser.add_argument("--name", default="reader")
    parser.add_argument("--base-model", default="tiny")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--reports", type=int, default=64, help="in each step")
    parser.add_argument("--samples", type=int, default=8, help="of each report")
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    model = art.TrainableModel(
        name=options.name,
        project="reports",
        base_model=options.base_model,
        base_path=f"{options.state}/art",
        _internal_config=art.dev.InternalModelConfig(
            peft_args={"r": 32, "lora_alpha": 64},
            trainer_args={
                "num_train_epochs": 2,
                "per_device_train_batch_size": 8,
                "lr_scheduler_type": "linear",
                "max_grad_norm": 1.0,
                "seed": options.seed,
            },
        ),
    )
    backend = LmServerBackend(options.server, state_dir=options.state)  # with ART: LocalBackend()
    await model.register(backend)
    held_out = draw_reports(10_000 + options.seed, options.held_out)
    rewards = {await model.get_step(): await mean_reward(model, held_out, options.seed)}
    while (step := await model.get_step()) < options.steps:
        reports = draw_reports(100 * options.seed + step, options.reports + len(held_out))
        fresh = [report for report in reports if report not in held_out][: options.reports]
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(
                    rollout(model, report, f"{options.seed} {step} {sample}")
                    for sample in range(options.samples)
                )
                for report in fresh
            ),
            pbar_desc=None,
        )
        result = await backend.train(
            model, groups, learning_rate=options.learning_rate, ppo=True, scale_rewards=False
        )
        await model.log(groups, metrics=result.metrics, step=result.step, split="train")
        rewards[result.step] = await mean_reward(model, held_out, options.seed)
        print(f"step {result.step}: mean reward {rewards[result.step]:.3f}", flush=True)
    await backend.close()
    print(json.dumps({"mean_reward": rewards, "of": len(held_out)}))


if __name__ == "__main__":
    asyncio.run(main())
