"""What `nip up` tells Prefect's server before it starts it."""

import prefect
from prefect.server.api.server import create_ui_app
from prefect.settings import PREFECT_UI_STATIC_DIRECTORY, temporary_settings

from nip_prefect.flows import up


def test_prefects_pages_are_copied_into_the_state_directory_and_not_into_the_package(
    tmp_path, monkeypatch
):
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
