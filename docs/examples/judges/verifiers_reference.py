"""The reference judge of verifiers; PRIME_API_KEY is its key, PRIME_INFERENCE_URL its endpoint."""

import verifiers.v1 as vf
from verifiers.v1.judges import ReferenceJudge, ReferenceJudgeConfig
from verifiers.v1.trace import AgentInfo, TraceTask

JUDGE = ReferenceJudge(ReferenceJudgeConfig(model="openai/gpt-6-luna"))


async def judge(question, response, reference=None, **columns):
    task = vf.WireTaskData(prompt=question, answer=reference)
    about = {"task": TraceTask(type="Task", data=task), "agent": AgentInfo(config=vf.AgentConfig())}
    return await JUDGE.score(task, vf.Trace(**about, root_reply=response)) == 1
