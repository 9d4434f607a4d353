"""A reward function of TRL as a judge, called as its trainers call it, with lists of one."""

from trl.rewards import accuracy_reward


def judge(question, response, reference=None, **columns):
    row = {name: [value] for name, value in columns.items()} | {"solution": [reference]}
    prompt = [{"role": "user", "content": question}]
    completion = [{"role": "assistant", "content": response}]
    row |= {"prompts": [prompt], "completions": [completion], "completion_ids": [[]]}
    return accuracy_reward(**row)[0]
