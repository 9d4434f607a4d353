"""The Tinker loops of README.md and howto/from-openai-or-tinker.md run as they stand there.

Their weights answer at /v1.
"""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from recipes import MODEL, Place

ROOT = Path(__file__).parents[4]
PAGES = (ROOT / "README.md", ROOT / "docs" / "howto" / "from-openai-or-tinker.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_loop_trains_and_its_weights_answer(page: Path, place: Place) -> None:
    text = page.read_text("utf-8")
    (loop,) = re.findall(r"```python\n(# with TINKER_BASE_URL.*?)```", text, re.DOTALL)
    (served_as,) = {*re.findall(r"--served-model-name (\S+)", text)}
    names: dict[str, Any] = {}
    exec(compile(loop.replace(served_as, MODEL), str(page), "exec"), names)
    first, last = (names["losses"][place] for place in (0, -1))
    assert len(names["losses"]) == 10 and last < first
    url, key = place.environment["TINKER_BASE_URL"], place.environment["TINKER_API_KEY"]
    answer = httpx.post(
        f"{url}/v1/completions",
        json={"model": names["weights"], "prompt": "5 6", "max_tokens": 4},
        headers={"Authorization": f"Bearer {key}"},
        timeout=120,
    ).json()
    assert answer["model"] == names["weights"] and answer["usage"]["completion_tokens"] > 0
