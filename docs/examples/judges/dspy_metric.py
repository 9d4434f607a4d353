"""A metric of DSPy as a judge. Without its cache: a second asking is to be a second answer."""

import dspy

METRIC = dspy.evaluate.SemanticF1()
METRIC.set_lm(dspy.LM("openai/gpt-6-luna", cache=False))


def judge(question, response, reference=None, **columns):
    example = dspy.Example(question=question, response=reference)
    return METRIC(example, dspy.Prediction(response=response)).score
