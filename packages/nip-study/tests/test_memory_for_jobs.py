"""More runs at a time than memory has room for are refused before anything is started."""

import pytest

from nip_core.errors import SettingsError
from nip_core.parameters import load_parameters
from nip_study.plan.memory_for_jobs import check_memory

MB = 10**6


def test_as_many_runs_at_a_time_are_taken_as_the_least_they_need_has_room_for() -> None:
    without, own = (load_parameters(name, []) for name in ("deterministic", "quickstart"))
    check_memory(2, [without] * 5, 300 * MB)
    check_memory(1, [own] * 5, 1)  # one at a time is for the run itself to try
    check_memory(8, [own], 1)
    with pytest.raises(SettingsError, match=r"--jobs 3: 3 runs .* 0\.5 GB .* 0\.4 GB .*--jobs 2"):
        check_memory(3, [without] * 5, 400 * MB)
    # Those with an engine of their own may be all at once.
    with pytest.raises(SettingsError, match=r"0\.8 GB of memory .* 0\.5 GB are here.*--jobs 1"):
        check_memory(2, [without, own, own], 500 * MB)
