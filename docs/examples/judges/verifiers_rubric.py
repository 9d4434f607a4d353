"""The rubric judge of verifiers; it returns a score from 0 to 1, for judge.threshold."""

import verifiers.v1 as vf
from verifiers.v1.judges import RubricJudge, RubricJudgeConfig
from verifiers.v1.trace import AgentInfo, TraceTask

JUDGE = RubricJudge(RubricJudgeConfig(path="rubric.toml", view="last_reply"))


async def judge(question, response, reference=None, **columns):
    task = vf.WireTaskData(prompt=question, answer=reference)
    about = {"task": TraceTask(type="Task", data=task), "agent": AgentInfo(config=vf.AgentConfig())}
    return await JUDGE.score(task, vf.Trace(**about, root_reply=response))
