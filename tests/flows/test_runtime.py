"""Which stages Prefect tries again by itself."""

import pytest
from prefect import flow, get_client

from nip_core.errors import SettingsError, StageError
from nip_core.rollouts.chat_client import TransportError
from nip_core.stages.playing import play_shard
from nip_prefect.tasks.calls import TASKS
from nip_prefect.tasks.runtime import limit_by_tag, retried_task, session_of


@pytest.mark.parametrize(
    ("error", "tries"),
    [(TransportError("no answer"), 3), (StageError("stop"), 1), (SettingsError("wrong"), 1)],
)
async def test_only_what_may_pass_is_tried_again(error, tries, prefect_server):
    tried = []

    @retried_task("trying", "trying")
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


async def test_a_tag_is_put_on_a_task_only_where_somebody_has_limited_it(prefect_server):
    task = TASKS[play_shard]
    assert (await limit_by_tag(task, "nobody-limits-this")) is task
    async with get_client() as client:
        await client.create_concurrency_limit("somebody-limits-this", 1)
    tagged = await limit_by_tag(task, "somebody-limits-this")
    assert tagged.tags == {"somebody-limits-this"}
    assert (tagged.retries, tagged.fn) == (task.retries, task.fn)
