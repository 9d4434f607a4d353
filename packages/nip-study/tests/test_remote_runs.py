"""What a sweep needs of a cluster is said before, or instead of, half a sweep."""

from contextlib import nullcontext

import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from nip_core.errors import LeaseError, SettingsError
from nip_core.run_store.lease import acquire
from nip_core.run_store.store import open_store
from nip_prefect.flows import remote_shards
from nip_study import run_process
from nip_study.plan.swept_runs import read_sweep
from nip_study.remote_runs import Cluster, _check_prefect, cluster_settings

DIRECTORY = "sweeps/small"


def sweep(folder, **settings):
    path = folder / "sweep.yaml"
    file = {"name": "small", "config": "deterministic", "axes": {"seed": [1, 2]}, "set": settings}
    path.write_text(yaml.safe_dump({**file, "run_store": str(folder / "runs")}))
    return read_sweep(path)


@pytest.mark.parametrize(
    ("kind", "address", "settings", "message"),
    [
        ("slurm", None, {}, "--task-runner 'slurm': use one of local, dask, ray"),
        (None, "tcp://a:1", {}, "--task-runner-address: belongs to --task-runner dask or ray"),
        ("dask", None, {"rollouts.task_runner": "ray"}, "small-1 plays its shards on a cluster"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_an_error(tmp_path, kind, address, settings, message):
    with pytest.raises(SettingsError, match=message):
        cluster_settings(sweep(tmp_path, **settings), kind, address)


def test_a_package_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(remote_shards._RUNNERS, "dask", ("prefect_dusk", "DaskTaskRunner"))
    planned = sweep(tmp_path)
    with pytest.raises(SettingsError, match="--task-runner: dask needs prefect-dusk, which is"):
        Cluster(planned, cluster_settings(planned, "dask", None), 2)


@pytest.mark.parametrize("address", [None, "tcp://127.0.0.1:8786", "auto", "tcp://far:8786"])
def test_machines_elsewhere_need_a_prefect_server_that_they_reach(address):
    far = pytest.raises(SettingsError, match="the machines of tcp://far:8786 can't reach it")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:4200/api"}):
        with far if address and "far" in address else nullcontext():
            _check_prefect(address)


def errand(lease, store):
    settings = {"run_name": "small-1"}
    place = {"store": store.url, "directory": DIRECTORY}
    return {"run": "small-1", "settings": settings, "lease": lease.lend().model_dump(), **place}


def test_a_machine_that_does_not_see_the_sweep_s_store_says_so(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    with acquire(open_store(tmp_path / "runs"), DIRECTORY, renew=False) as lease:
        told = errand(lease, open_store(tmp_path / "elsewhere"))
        with pytest.raises(SettingsError, match="does not see there what the sweep has put there"):
            run_process.run_remotely.fn(told, "small-1")
        (tmp_path / "elsewhere").rmdir()
        with pytest.raises(SettingsError, match="a disk that all of its machines share"):
            run_process.run_remotely.fn(told, "small-1")
        assert not (tmp_path / "elsewhere").exists()


def test_a_run_ends_when_nobody_leads_its_sweep(tmp_path, monkeypatch):
    store, now_s = open_store(tmp_path), [0.0]
    monkeypatch.setattr(run_process.time, "monotonic", lambda: now_s[0])
    lease = acquire(store, DIRECTORY, renew=False)
    leader = run_process._Leader(errand(lease, store))
    for _ in range(20):  # as long as it is renewed
        assert leader.is_there(store)
        lease.renew()
        now_s[0] += 10.0
    for _ in range(3):  # and for its time to live, if it may be dead
        assert leader.is_there(store)
        now_s[0] += 10.0
    assert not leader.is_there(store)
    lease.renew()
    now_s[0] += 10.0
    assert leader.is_there(store)
    lease.release()
    now_s[0] += 10.0
    assert not leader.is_there(store)
    with pytest.raises(LeaseError, match="nobody leads this sweep any longer"):
        run_process.run_remotely.fn(errand(lease, store), "small-1")
