"""A schedule decides in which iterations an agent is trained, and is written and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.errors import SettingsError
from nip_core.parameters import (
    AgentUpdateSchedule,
    AlternatingPeriodicUpdateSchedule,
    ConstantUpdateSchedule,
    ContiguousPeriodicUpdateSchedule,
    HyperParameters,
    load_parameters,
)

MINIMAL = {"run_name": "a", "dataset": "families"}
schedules = st.one_of(
    st.just(ConstantUpdateSchedule()),
    st.lists(st.integers(0, 12), min_size=2, max_size=2, unique=True).flatmap(
        lambda ends: st.integers(max(ends), 20).map(
            lambda period: ContiguousPeriodicUpdateSchedule(period, min(ends), max(ends))
        )
    ),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()).map(
        lambda t: AlternatingPeriodicUpdateSchedule(t[0] + t[1], t[0], first_agent=t[2])
    ),
)


def updated(schedule: AgentUpdateSchedule, iterations: int = 8) -> list[int]:
    return [i for i in range(iterations) if schedule.updates(i)]


def test_the_iterations_are_those_of_the_arguments():
    assert updated(ConstantUpdateSchedule()) == list(range(8))
    assert updated(ContiguousPeriodicUpdateSchedule(4, 1, 3)) == [1, 2, 5, 6]
    assert updated(AlternatingPeriodicUpdateSchedule(3, 1)) == [0, 3, 6]
    assert updated(AlternatingPeriodicUpdateSchedule(3, 1, first_agent=False)) == [1, 2, 4, 5, 7]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_of_two_agents_that_alternate_exactly_one_is_trained(first, second, iteration):
    period = first + second
    pair = [AlternatingPeriodicUpdateSchedule(period, first, first_agent=b) for b in (True, False)]
    assert sum(schedule.updates(iteration) for schedule in pair) == 1


@given(schedules)
def test_a_schedule_is_written_and_read_back(schedule):
    assert AgentUpdateSchedule.from_dict(schedule.to_dict()) == schedule
    given_ = {**MINIMAL, "agents": {"prover": {"update_schedule": schedule}}}
    loaded = load_parameters(given_)
    assert HyperParameters.from_dict(loaded.to_dict()) == loaded
    assert loaded.agents["prover"].update_schedule == schedule


def test_the_written_form_is_that_of_the_page_and_arguments_may_lie_beside_the_name():
    schedule = ContiguousPeriodicUpdateSchedule(4, 0, 2)
    arguments = {"period": 4, "start": 0, "stop": 2}
    name = "ContiguousPeriodicUpdateSchedule"
    assert schedule.to_dict() == {"_type": name, name: arguments}
    assert AgentUpdateSchedule.from_dict({"_type": name, **arguments}) == schedule
    earlier = {
        "_type": "AlternatingPeriodicUpdateSchedule",
        "period": 4,
        "first_agent_num_rounds": 1,
    }
    assert AgentUpdateSchedule.from_dict(earlier) == AlternatingPeriodicUpdateSchedule(4, 1)
    by_name = load_parameters(MINIMAL, ["agents.prover.update_schedule=ConstantUpdateSchedule"])
    assert by_name.agents["prover"].update_schedule == ConstantUpdateSchedule()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"_type": "Sometimes"}, "_type must be one of ConstantUpdateSchedule, Contig"),
        ({"period": 4}, "(got None)"),
        ({"_type": "ContiguousPeriodicUpdateSchedule", "period": 4}, "'start' and 'stop'"),
        ({"_type": "ConstantUpdateSchedule", "period": 4}, "argument 'period'"),
        (
            {"_type": "ContiguousPeriodicUpdateSchedule", "period": 4, "start": 2, "stop": 2},
            "0 <= start < stop <= period is needed (got start=2, stop=2, period=4)",
        ),
        (
            {"_type": "ContiguousPeriodicUpdateSchedule", "period": 4.0, "start": 0, "stop": 2},
            "period must be an integer (got 4.0)",
        ),
        (
            {
                "_type": "AlternatingPeriodicUpdateSchedule",
                "period": 4,
                "first_agent_num_iterations": 4,
            },
            "0 < first_agent_num_iterations < period",
        ),
        (
            {"_type": "ConstantUpdateSchedule", "ConstantUpdateSchedule": 3},
            "a mapping of arguments is needed (got 3)",
        ),
        (3, "AgentUpdateSchedule"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_named(values, said):
    with pytest.raises(SettingsError) as caught:
        load_parameters({**MINIMAL, "agents": {"prover": {"update_schedule": values}}})
    assert "agents.prover.update_schedule: " in str(caught.value) and said in str(caught.value)


def test_a_group_is_trained_on_the_agents_whose_schedule_says_so():
    first = AlternatingPeriodicUpdateSchedule(4, 1)
    second = AlternatingPeriodicUpdateSchedule(4, 1, first_agent=False)
    loaded = load_parameters(
        {
            **MINIMAL,
            "interaction_protocol": "mnip",
            "agents": {
                "prover0": {"shared_model_group": "provers", "update_schedule": first},
                "prover1": {"shared_model_group": "provers"},
                "verifier": {"update_schedule": second},
            },
        }
    )
    assert [loaded.training_agents("provers", i) for i in (0, 1)] == [
        ("prover0", "prover1"),
        ("prover1",),
    ]
    assert [loaded.training_agents("verifier", i) for i in (0, 1, 4, 5)] == [
        *((), ("verifier",)),
        *((), ("verifier",)),
    ]


def test_a_frozen_group_is_never_trained():
    loaded = load_parameters({**MINIMAL, "agents": {"prover": {"freeze_agent": True}}})
    assert loaded.training_agents("prover", 0) == ()
    assert loaded.trainable_groups == ("verifier",)


def test_agents_that_alternate_out_of_step_are_refused():
    agents = {
        "prover": {"update_schedule": AlternatingPeriodicUpdateSchedule(4, 1)},
        "verifier": {"update_schedule": AlternatingPeriodicUpdateSchedule(4, 2, False)},
    }
    with pytest.raises(SettingsError, match=r"agents.verifier.update_schedule: .* must agree"):
        load_parameters({**MINIMAL, "agents": agents})
