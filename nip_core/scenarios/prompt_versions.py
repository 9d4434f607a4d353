"""The versions of prompts: how an agent answers, and in whose words.

PromptVersion      their names, as the setting system_prompt_version has them
form_of            the version that lends another one its templates
reasons_first      whether an agent reasons before it answers
fits_any_words     whether the sentences are right for the words of every scenario

"v3" and "v4" are "v1" and "v2" with sentences that fit any scenario's words. Runs played in a
version keep its prompts, to the letter; so none is ever changed, and a better one is a new one.
"""

from typing import Literal

PromptVersion = Literal["v1", "v2", "v3", "v4", "short"]
FIRST: PromptVersion = "v1"
"""Of a scenario whose settings name none; of one's own before there was another."""
SHORT: PromptVersion = "short"
"""For very small models, which follow no instructions."""
OF_OWN_SCENARIOS: PromptVersion = "v3"
"""Of a new run of a scenario of one's own, where neither settings nor class name one."""
_FORMS = {"v3": "v1", "v4": "v2"}


def form_of(version: str) -> str:
    """Name the version with the same templates and the same form of answers."""
    return _FORMS.get(version, version)


def reasons_first(version: str) -> bool:
    """Tell whether agents reason before they answer."""
    return form_of(version) == "v2"


def fits_any_words(version: str) -> bool:
    """Tell whether the sentences fit the words of any scenario."""
    return version in _FORMS
