"""What Locust asks: one chat after the other, the models in turn. It runs in Locust's environment.

CHATS names a JSON file with the address, the key, the bodies of the requests, which all users
together take from the first to the last and then again, and the file to write what Locust counted
to. An answer that does not have the number of tokens that was asked for is a failure. Locust's own
files do not do: its table is written now and then, the last requests missing, and its JSON has no
time of the start.
"""

import itertools
import json
import os
from pathlib import Path
from typing import Any

from locust import FastHttpUser, events, task

CHATS = json.loads(Path(os.environ["CHATS"]).read_text())
BODIES = itertools.cycle([json.dumps(body).encode() for body in CHATS["bodies"]])
HEADERS = {"Authorization": f"Bearer {CHATS['key']}", "Content-Type": "application/json"}


class Asker(FastHttpUser):
    """One request in flight, always: the next is sent once the last is answered."""

    host = CHATS["url"]
    network_timeout = connection_timeout = 600.0

    @task
    def ask(self) -> None:
        """Ask the next one."""
        body = next(BODIES)
        with self.client.post(
            "/v1/chat/completions", data=body, headers=HEADERS, catch_response=True
        ) as answer:
            why = getattr(answer, "error", None) or answer.text  # no status: no answer came at all
            try:
                tokens = answer.json()["usage"]["completion_tokens"]
            except (ValueError, KeyError, TypeError):
                answer.failure(f"status {answer.status_code}: {str(why)[:200]}")
                return
            if tokens != CHATS["tokens"]:
                answer.failure(f"{tokens} tokens")


@events.quitting.add_listener
def write(environment: Any, **_: Any) -> None:
    """Write what was counted from the start of the run to the last answer."""
    stats = environment.stats
    counted = {
        "requests": stats.total.num_requests,
        "failures": [str(failure.error) for failure in stats.errors.values()],
        "requests_per_s": stats.total.total_rps,
        "median_ms": stats.total.median_response_time,
        "p95_ms": stats.total.get_response_time_percentile(0.95),
    }
    Path(CHATS["out"]).write_text(json.dumps(counted))
