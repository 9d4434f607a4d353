"""A running server, as the tests see it."""

from typing import Any

import openai


class Server:
    """Address and key of a server, and the jobs that a test made on it."""

    def __init__(self, url: str, api_key: str):
        self.url, self.api_key = url, api_key
        self._before: set[str] = set()

    def forget(self) -> None:
        """A test begins: jobs that are there are not its own."""
        self._before |= {job.id for job in self.jobs()}

    def jobs(self) -> list[Any]:
        """The test's jobs, newest first."""
        with openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0
        ) as client:
            found = list(client.fine_tuning.jobs.list(limit=100))
        return [job for job in found if job.id not in self._before]
