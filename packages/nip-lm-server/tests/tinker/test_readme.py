"""The Tinker loop that README.md shows runs as it stands there, and its weights answer at /v1."""

import re
from pathlib import Path
from typing import Any

import httpx
from recipes import MODEL, Place

README = Path(__file__).parents[4] / "README.md"


def test_the_loop_trains_and_its_weights_answer(place: Place) -> None:
    text = README.read_text("utf-8")
    (loop,) = re.findall(r"```python\n(# with TINKER_BASE_URL.*?)```", text, re.DOTALL)
    (served_as,) = re.findall(r"--served-model-name (\S+)", text)
    names: dict[str, Any] = {}
    exec(compile(loop.replace(served_as, MODEL), str(README), "exec"), names)
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
