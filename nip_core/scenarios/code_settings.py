"""Settings of `code_validation`, which have a block of their own among those of a run.

So a reader of a run's settings has to know them, and knows no scenario by that.
"""

from typing import Literal

from nip_core.scenarios.base import ScenarioSettings


class CodeValidationSettings(ScenarioSettings):
    """Settings of the code-validation scenario."""

    apps_difficulty: Literal["introductory", "interview", "competition"] | None = None
    """Keep only problems of this difficulty: "introductory", "interview" or "competition". None:
    all. For lrhammond/buggy-apps."""
    apps_exclude_flagged: bool = True
    """Leave out problems with moderation flags. For lrhammond/buggy-apps."""
