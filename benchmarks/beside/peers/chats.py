"""What Locust asks: one chat after the other, the models in turn. It runs in Locust's environment.

CHATS names a JSON file with the address, the key, the path and the bodies of the requests, which
all users together take from the first to the last and then again. An answer that does not have the
number of tokens that was asked for is a failure.
"""

import itertools
import json
import os
from pathlib import Path

from locust import FastHttpUser, task

CHATS = json.loads(Path(os.environ["CHATS"]).read_text())
BODIES = itertools.cycle([json.dumps(body).encode() for body in CHATS["bodies"]])
HEADERS = {"Authorization": f"Bearer {CHATS['key']}", "Content-Type": "application/json"}


class Asker(FastHttpUser):
    """One request in flight, always: the next is sent once the last is answered."""

    host = CHATS["url"]
    network_timeout = connection_timeout = 300.0

    @task
    def ask(self) -> None:
        """Ask the next one."""
        body = next(BODIES)
        with self.client.post(
            "/v1/chat/completions", data=body, headers=HEADERS, catch_response=True
        ) as answer:
            try:
                tokens = answer.json()["usage"]["completion_tokens"]
            except (ValueError, KeyError, TypeError):
                answer.failure(f"status {answer.status_code}: {str(answer.text)[:200]}")
                return
            if tokens != CHATS["tokens"]:
                answer.failure(f"{tokens} tokens")
