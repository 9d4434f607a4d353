"""A scorer of Inspect as a judge; GRADER_BASE_URL and GRADER_API_KEY name the endpoint."""

from inspect_ai.scorer import model_graded_qa

from nip_inspect.judge import from_scorer

judge = from_scorer(model_graded_qa(model="openai-api/grader/gpt-6-luna"))
