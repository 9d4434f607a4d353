"""The doors between distributions stay narrow: counted, and the counts only go down."""

import ast

from houses import HOUSES, ROOT, list_nodes

from nip_lm_server import client

MOST_OF_THE_SERVER = 25
MOST_OF_THE_BASE = 60


def imported_names(path, package):
    return {
        (node.module, alias.name)
        for node in list_nodes(path, ast.ImportFrom)
        if node.module is not None and node.module.split(".")[0] == package
        for alias in node.names
    }


def sources_outside(*houses):
    places = {**HOUSES, "nip_prefect": ROOT / "nip_prefect", "flows": ROOT / "flows"}
    places["tasks"] = ROOT / "tasks"
    for name, place in places.items():
        if name not in houses:
            yield from place.rglob("*.py")


def test_the_door_of_the_server_has_few_names_and_each_is_used_outside():
    assert len(client.__all__) <= MOST_OF_THE_SERVER
    used = set()
    for path in sources_outside("nip_lm_server"):
        names = imported_names(path, "nip_lm_server")
        assert {module for module, _ in names} <= {"nip_lm_server.client"}
        used |= {name for _, name in names}
    assert used == set(client.__all__)


def test_few_names_of_the_base_are_imported_by_those_above_the_server():
    used = set()
    for path in sources_outside("nip_base", "nip_lm_server"):
        used |= imported_names(path, "nip_base")
    assert len(used) <= MOST_OF_THE_BASE


def test_commands_of_the_server_are_its_own_and_the_loop_imports_no_proof():
    for path in sources_outside("nip_base", "nip_lm_server"):
        names = {name for _, name in imported_names(path, "nip_lm_server")}
        assert not {name for name in names if "prove" in name.lower() or "Proof" in name}, path
    assert not (ROOT / "nip_cli" / "serving").exists()
