"""Counters of what is being played, for a live view; a budget goes by the tokens."""

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Counts since the process started. Written by the event loop's thread alone."""

    stage: str = ""
    episodes_total: int = 0
    episodes_done: int = 0
    episodes_in_flight: int = 0
    episodes_failed: int = 0
    calls: int = 0  # answers received
    calls_reused: int = 0  # answers found in a journal
    retries: int = 0
    last_trouble: str = ""
    """Why the last call was sent again."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_by_agent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Prompt and generated tokens, by agent."""
    warning: str = ""
    """What people should see at once."""

    def start_stage(self, stage: str, episodes: int, done: int = 0, failed: int = 0) -> None:
        """Begin counting the episodes of a new stage, of which some may be done, and have failed;
        tokens and calls go on."""
        self.stage = stage
        self.episodes_total, self.episodes_done, self.episodes_failed = episodes, done, failed

    def count_answer(self, agent: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Add one received answer."""
        self.calls += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        before = self.tokens_by_agent.get(agent, (0, 0))
        self.tokens_by_agent[agent] = (before[0] + prompt_tokens, before[1] + completion_tokens)

    def count_retry(self, reason: str) -> None:
        """Note that a call is sent again."""
        self.retries += 1
        self.last_trouble = reason
