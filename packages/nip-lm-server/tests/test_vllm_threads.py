"""How the CPU build of vLLM is told to share few processors with what asks it."""

import pytest

from nip_base.machine.processors import SMALL_BYTES
from nip_core.models import BUNDLED
from nip_lm_server.engines.vllm.threads import (
    FEW_PROCESSORS,
    share_processors,
)

ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def test_with_few_processors_no_process_of_vllm_polls_and_a_small_model_has_one_thread(tmp_path):
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(SMALL_BYTES)
    for processors in (1, 2, FEW_PROCESSORS):
        assert share_processors({}, str(tmp_path), processors) == ONE_PROCESS
        small = share_processors({}, str(BUNDLED["tiny"]), processors)
        assert small == {**ONE_PROCESS, "OMP_NUM_THREADS": "1"}


def test_a_model_that_is_not_on_the_disk_yet_is_not_taken_for_a_small_one():
    assert share_processors({}, "a-hub/name", 2) == ONE_PROCESS


def test_with_many_processors_vllm_binds_its_threads_as_it_comes():
    assert share_processors({}, str(BUNDLED["tiny"]), FEW_PROCESSORS + 1) == {}


@pytest.mark.parametrize("given", [{name: "1"} for name in ONE_PROCESS])
def test_who_has_bound_threads_or_chosen_processes_keeps_what_was_said(given):
    assert share_processors(given, str(BUNDLED["tiny"]), 2) == {}


def test_a_number_of_threads_that_was_said_stays():
    given = {"OMP_NUM_THREADS": "2"}
    assert share_processors(given, str(BUNDLED["tiny"]), 2) == ONE_PROCESS
