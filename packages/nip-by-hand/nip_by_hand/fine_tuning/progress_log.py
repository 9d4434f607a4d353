"""The log of a trainer adapter: one JSON line for each call of its `log_progress`.

append_progress   append a line to ``trainer_adapter_<run id>.jsonl``
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nip_by_hand.fine_tuning.interface import TrainingJobRef
from nip_by_hand.fine_tuning.submissions import run_name

LOG_DIRECTORY = "./.tmp/nat/finetuning/trainer_adapter"


def append_progress(
    ref: TrainingJobRef,
    metrics: Mapping[str, Any],
    trainer_config: Mapping[str, Any],
    output_dir: str | None = None,
) -> Path:
    """Append ``{**metrics, timestamp, run_id, backend, trainer_config}``; the file.

    It lies in `output_dir`, by default `LOG_DIRECTORY`, which is created. A run id that is no file
    name is written as its letters and a hash. Metrics named like one of the four fixed keys are
    left out. Numbers and objects that JSON has no words for are written as text.
    """
    line = {
        **metrics,
        "timestamp": datetime.now(UTC).isoformat(),
        "run_id": ref.run_id,
        "backend": ref.backend,
        "trainer_config": dict(trainer_config),
    }
    text = json.dumps(_make_sayable(line), ensure_ascii=False, allow_nan=False, default=str)
    directory = Path(output_dir or LOG_DIRECTORY)
    directory.mkdir(parents=True, exist_ok=True)
    # A run id that is no file name is written as its letters and a hash.
    plain = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", ref.run_id)
    path = directory / f"trainer_adapter_{ref.run_id if plain else run_name(ref.run_id)}.jsonl"
    with path.open("ab", buffering=0) as file:  # one write, so that lines of processes don't mix
        file.write((text + "\n").encode(errors="backslashreplace"))
    return path


def _make_sayable(value: Any) -> Any:
    """Put text for numbers JSON has no words for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _make_sayable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_make_sayable(item) for item in value]
    return value
