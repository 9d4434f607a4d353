"""Which stages Prefect tries again by itself."""

import pytest
from prefect import flow

from nip_core.agents.chat_client import TransportError
from nip_core.errors import SettingsError, StageError
from tasks.runtime import session_of, stage


@pytest.mark.parametrize(
    ("error", "tries"),
    [(TransportError("no answer"), 3), (StageError("stop"), 1), (SettingsError("wrong"), 1)],
)
async def test_only_what_may_pass_is_tried_again(error, tries, prefect_server):
    tried = []

    @stage("trying", "trying")
    async def trying() -> None:
        tried.append(1)
        raise error

    quick = trying.with_options(retry_delay_seconds=[0.0, 0.0])

    @flow
    async def once() -> None:
        await quick()

    with pytest.raises(type(error)):
        await once()
    assert len(tried) == tries


def test_a_run_that_is_not_open_is_named():
    with pytest.raises(RuntimeError, match="'nowhere' is not open"):
        session_of("nowhere")
