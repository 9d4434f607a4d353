"""Judges of a user's own, of each form that a judge's file can name.

make_judge     the judge of a file
make_variant   the same judge behind a rule of nip's; VARIANTS: their names

prompted       a prompt at a model; functions: a function; grader_files: OpenAI's graders;
reward_model   a classifier with one logit; variants: rules before and after a judge
filling        placeholders; chat_asking: the request; likelihood: P(accept); values, calling:
               the value that a function returns, and a call that may hang
"""

from typing import TYPE_CHECKING

from nip_core.rollouts.client.completions import ChatCompletions
from nip_judges.judges.chat_asking import find_judge_endpoint
from nip_judges.judges.functions import FunctionJudge, make_function
from nip_judges.judges.grader_files import make_grader
from nip_judges.judges.prompted import ChatJudge, make_prompted
from nip_judges.judges.reward_model import make_reward_model
from nip_judges.judges.variants import VARIANTS, make_variant
from nip_judges.parts import Judge

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

__all__ = [
    "VARIANTS",
    "ChatJudge",
    "FunctionJudge",
    "find_judge_endpoint",
    "make_judge",
    "make_variant",
]


def make_judge(file: "JudgeFile", client: ChatCompletions | None) -> Judge:
    """Make the judge that a file describes; `client` asks its model, where it has one.

    Raises SettingsError where it can't be made.
    """
    if file.judge.prompt is not None:
        return make_prompted(file, client)
    if file.judge.function is not None:
        return make_function(file)
    if file.judge.grader is not None:
        return make_grader(file, client)
    return make_reward_model(file)
