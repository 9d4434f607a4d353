"""A judge's verdicts by nip, as `nip attack --judge` asks for them.

open_judge  the judge of a yaml, with its client
write_yaml  the yaml of a function
shown       a text as a judge is asked about it
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from nip_core.rollouts.client.chat_client import ChatClient
from nip_judges.judges import make_judge
from nip_judges.parts import Judge, ShownText
from nip_judges.settings.judge_file import load_judge_file

EXAMPLES = Path(__file__).parents[4] / "docs/examples/judges"


@asynccontextmanager
async def open_judge(path: Path, overrides: Sequence[str] = ()) -> AsyncIterator[Judge]:
    """Make the judge of a file."""
    file = load_judge_file(path, overrides)
    if file.agent is None:
        yield make_judge(file, None)
        return
    async with ChatClient(concurrency=8, timeout_s=30, retries=0, follows=True) as client:
        yield make_judge(file, client)


def write_yaml(folder: Path, function: str, **judge: object) -> Path:
    """Write the yaml of a function."""
    settings = {
        "judge": {"function": function, **judge},
        "data": {"file": "graded.jsonl", "reference": "reference"},
    }
    path = folder / "judge.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def shown(
    response: str, question: str = "Capital of France?", other: str | None = None
) -> ShownText:
    """A text with its row's columns."""
    columns = {"question": question, "response": response, "reference": "Paris", "right": "true"}
    return ShownText(question, response, "Paris", columns, other)
