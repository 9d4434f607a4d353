"""A workflow of NeMo Agent Toolkit that reads an expert's report, and the evaluator of its answers.

A report names an operation first, and the operation alone decides whether "Decision: accept" or
"Decision: reject" is right. A right decision is worth 1, any other 0.1, anything else nothing.

    scripts/build_nat.sh            # also installs this, as a plug-in
    .venv/bin/nip serve --engine embedded --model tiny --state ./server-state   # another terminal
    NIP_API_KEY=... .nat-env/bin/nat finetune --config_file docs/examples/nemo/config.yml
"""

from collections.abc import AsyncIterator

from langchain_core.messages import HumanMessage, SystemMessage
from nat.builder.builder import Builder, EvalBuilder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.component_ref import LLMRef
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

DECIDE = "No more questions. Decide now."


class ReaderConfig(FunctionBaseConfig, name="report_reader"):
    """`llm`: which model decides."""

    llm: LLMRef


@register_function(config_type=ReaderConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def report_reader(config: ReaderConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    """One question, one answer."""
    llm = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def read(report: str) -> str:
        """The decision on a report."""
        answer = await llm.ainvoke([SystemMessage(DECIDE), HumanMessage(report, name="Expert")])
        return str(answer.content)

    yield FunctionInfo.from_fn(read, description="Decides on a report.")


class DecisionConfig(EvaluatorBaseConfig, name="right_decision"):
    """Has no settings."""


class RightDecision(BaseEvaluator):
    """Compares the answer with the data set's."""

    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        """1 for the right decision, 0.1 for the other, else 0."""
        said, right = str(item.output_obj), str(item.expected_output_obj)
        is_decision = said in ("Decision: accept", "Decision: reject")
        score = 1.0 if said == right else 0.1 if is_decision else 0.0
        return EvalOutputItem(id=item.id, score=score, reasoning={"said": said, "right": right})


@register_evaluator(config_type=DecisionConfig)
async def right_decision(
    config: DecisionConfig, builder: EvalBuilder
) -> AsyncIterator[EvaluatorInfo]:
    """The evaluator that gives the reward."""
    evaluator = RightDecision(builder.get_max_concurrency(), tqdm_desc="Decisions")
    yield EvaluatorInfo(
        config=config, evaluate_fn=evaluator.evaluate, description="Was the decision right?"
    )
