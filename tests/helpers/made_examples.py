"""Training examples of all three methods, written by hand."""

from nip_core.trainers.base import Example, Pair, TokenTurn, Trajectory


def lineage(i):
    return {
        "key": f"key-{i:04d}",
        "agent": "verifier",
        "episode": f"episode-{i}",
        "generations": (f"g{i}-0", f"g{i}-2"),
        "iteration": 3,
        "problem": f"p{i}",
        "question_id": f"q{i // 2}",
        "y": i % 2,
        "reward": 0.1 * i,
        "reason": "threshold",
        "tokens": None if i == 1 else 100 + i,
    }


def chat(i):
    return (
        {"role": "system", "content": f"Return x plus {i}."},
        {"role": "assistant", "content": "Question: why?"},
        {"role": "user", "content": "Answer: b", "name": "Expert"},
    )


def example(i, text="Decision: accept"):
    answer = {"role": "assistant", "content": text}
    return Example(**lineage(i), messages=(*chat(i), answer))


def pair(i, text="Decision: accept"):
    return Pair(
        **lineage(i), messages=chat(i), chosen=text, rejected=f"no {i}", rejected_reward=-0.5
    )


def trajectory(i):
    turns = (
        TokenTurn(prompt_token_ids=[1, i], completion_token_ids=[3, 2], logprobs=[-0.25, -0.1]),
        TokenTurn(prompt_token_ids=[1, i, 3, 2, 9], completion_token_ids=[4], logprobs=None),
    )
    return Trajectory(**lineage(i), turns=turns, group_id=f"group-{i // 2}", advantage=0.5 - i % 2)


MAKE = {"supervised": example, "dpo": pair, "trajectories": trajectory}


def made(method, count):
    return [MAKE[method](i) for i in range(count)]
