"""Trackers that can't be are refused by name before anything is spent; a run goes on with others."""

import re

import pytest
from typer.testing import CliRunner

from nip_bridges.tracking.places import check_trackers, is_remote, tracker_directory
from nip_cli.cli import app
from nip_core import how_to_install
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_core.session.prepare import prepare

RUN = {"run_name": "a", "dataset": "problems", "agents": {"_default": {"use_dummy_api": True}}}


def trackers(*values):
    return load_parameters({**RUN, "tracking": list(values)}).tracking


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["wandbb"], "tracking.0: 'wandbb' is no tracker; there are trackio, wandb, mlflow, tens"),
        ("mlflow", r"tracking: write a list, for example tracking: \[trackio\] \(got 'mlflow'\)"),
        ([{"project": "x"}], "tracking.0.kind: is missing"),
        ([3], r"a tracker is a name or a block such as .* \(got 3\)"),
        ([{"kind": "wandb", "uri": "x"}], "wandb has no option uri; it has directory, entity"),
        ([{"kind": "tensorboard", "project": "x"}], "tensorboard has no option project; it has d"),
        ([{"kind": "trackio", "uri": "x:1"}], "an address with http:// or https:// is needed"),
        (["trackio", "wandb", "trackio"], "trackio is named twice with the same options"),
        ([{"kind": "mlflow", "url": "x"}], "tracking.0.url: unknown setting"),
    ],
)
def test_a_tracker_that_is_none_is_refused_by_name(value, message):
    with pytest.raises(SettingsError, match=message):
        load_parameters({**RUN, "tracking": value})


@pytest.mark.parametrize(
    "uri", ["http://me:secret@h:5000", "http://h/?write_token=secret", "postgresql://me:secret@h/d"]
)
def test_no_secret_stands_in_the_settings_or_in_a_message(uri):
    for value in ([{"kind": "mlflow", "uri": uri}], [uri], uri):
        with pytest.raises(SettingsError) as refused:
            load_parameters({**RUN, "tracking": value})
        assert "secret" not in str(refused.value)


def test_settings_go_through_a_dictionary():
    parameters = load_parameters(
        {**RUN, "tracking": ["trackio", {"kind": "mlflow", "uri": "http://h:5000"}]}
    )
    assert HyperParameters.from_dict(parameters.to_dict()) == parameters
    assert [t.kind for t in load_parameters(RUN, ["tracking=[wandb, mlflow]"]).tracking] == [
        "wandb",
        "mlflow",
    ]


@pytest.mark.parametrize("kind", ["trackio", "wandb", "mlflow", "tensorboard"])
def test_one_that_is_not_installed_names_its_extra_before_anything_is_written(tmp_path, kind):
    parameters = load_parameters({**RUN, "run_store": str(tmp_path / "r"), "tracking": [kind]})
    needed = re.escape(f"{kind} is not installed; {how_to_install(kind)}, or ")
    with pytest.raises(SettingsError, match=needed):
        prepare(parameters)
    assert not list((tmp_path / "r").glob("*"))


def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.setattr("nip_bridges.tracking.places._is_installed", lambda _: True)
    with pytest.raises(SettingsError, match="WANDB_API_KEY, which is not set"):
        check_trackers(trackers("wandb"), {})
    check_trackers(trackers("wandb"), {"WANDB_API_KEY": "k"})
    check_trackers(trackers("wandb"), {"WANDB_MODE": "offline"})
    with pytest.raises(SettingsError, match="TRACKIO_WRITE_TOKEN, which is not set"):
        check_trackers(trackers("trackio"), {"TRACKIO_SERVER_URL": "http://h"})


def test_a_run_goes_on_with_other_trackers(tmp_path):
    run = RunStore(open_store(tmp_path), "a")
    neutral = ("tracking",)
    first = Identity(load_parameters(RUN).to_dict(), "1", 1, data_neutral=neutral)
    run.create_or_open(first)
    more = load_parameters(RUN, ["tracking=[trackio]"]).to_dict()
    again = run.create_or_open(Identity(more, "1", 1, data_neutral=neutral))
    assert [*again.changed] == ["tracking"]


def test_each_address_has_a_cursor_of_its_own(tmp_path):
    run, environment = RunStore(open_store(tmp_path), "a"), {"MLFLOW_TRACKING_URI": "http://h:1"}
    several = trackers(
        *("mlflow", {"kind": "mlflow", "uri": "http://h:2"}, {"kind": "mlflow", "project": "x"}),
        *("wandb", {"kind": "wandb", "mode": "offline"}, "trackio", "tensorboard"),
    )
    places = [tracker_directory(run, tracker, environment) for tracker in several]
    assert len({*places}) == len(places)
    assert [is_remote(t, environment) for t in several] == [True] * 4 + [False] * 3
    secret = {"MLFLOW_TRACKING_URI": "http://me:secret@h:1"}
    assert tracker_directory(run, several[0], secret) == places[0]
    [same] = trackers({"kind": "mlflow", "uri": "http://h:1"})
    assert tracker_directory(run, same, environment) == places[0]


def test_nip_track_says_what_it_lacks(tmp_path):
    run = RunStore(open_store(tmp_path), "a")
    run.create_or_open(Identity(load_parameters(RUN).to_dict(), "1", 1))
    place = ["--run-store", str(tmp_path)]
    for arguments, message in (
        (["b", *place], "run 'b' is not in"),
        (["a", *place], "has no tracking in its settings; name a tracker: --to trackio"),
        (["a", *place, "--to", "wandbb"], "--to: 0: 'wandbb' is no tracker"),
        (["a", *place, "--to", "mlflow"], r"mlflow is not installed"),
    ):
        result = CliRunner().invoke(app, ["track", *arguments])
        assert isinstance(result.exception, SettingsError)
        assert message in str(result.exception)


@pytest.mark.parametrize("address", ["http://u:s3/cret@h:1", "http://s3:abc", "https://s3@[::1"])
def test_what_is_no_address_is_refused_and_not_shown(address):
    for kind, variable in (("mlflow", "MLFLOW_TRACKING_URI"), ("wandb", "WANDB_BASE_URL")):
        with pytest.raises(SettingsError, match=f"environment variable {variable}: ") as no:
            check_trackers(trackers(kind), {variable: address})
        assert "s3" not in str(no.value)
    with pytest.raises(SettingsError, match="uri") as no:
        trackers({"kind": "mlflow", "uri": address})
    assert "s3" not in str(no.value)
