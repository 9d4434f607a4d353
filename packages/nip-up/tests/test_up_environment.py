"""What `nip up` tells Prefect's server before it starts it."""

import stat

import prefect
from prefect.settings import PREFECT_UI_STATIC_DIRECTORY, temporary_settings

from nip_up import up
from nip_up.parts import Parts


def test_prefects_pages_are_copied_into_the_state_directory_and_not_into_the_package(
    tmp_path, monkeypatch
):
    # All of Prefect's server, which takes seconds: for this test alone.
    from prefect.server.api.server import create_ui_app

    for name in ("PREFECT_UI_STATIC_DIRECTORY", "PREFECT_SERVER_UI_STATIC_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    place = up._environment(tmp_path, 4200)["PREFECT_SERVER_UI_STATIC_DIRECTORY"]
    package = prefect.__module_path__ / "server"
    before = {path: path.stat().st_mtime_ns for path in package.iterdir()}
    with temporary_settings({PREFECT_UI_STATIC_DIRECTORY: place}):
        create_ui_app(ephemeral=False)
    assert (tmp_path / "prefect-ui" / "v1" / "index.html").is_file()
    assert {path: path.stat().st_mtime_ns for path in package.iterdir()} == before


def test_a_place_that_somebody_has_chosen_for_prefects_pages_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_UI_STATIC_DIRECTORY", "/srv/pages")
    environment = up._environment(tmp_path, 4200)
    assert environment["PREFECT_SERVER_UI_STATIC_DIRECTORY"] == "/srv/pages"


def test_what_prefect_keeps_and_what_the_parts_say_is_nobody_elses(tmp_path):
    (tmp_path / "logs").mkdir(mode=0o755)
    (tmp_path / "prefect").mkdir(mode=0o755)
    up._keep_private(tmp_path / "prefect")
    Parts(tmp_path).__enter__()
    for name in ("logs", "prefect"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
