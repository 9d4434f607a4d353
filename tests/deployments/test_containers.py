"""The compose file and the image: never started here, so what can be checked of them is."""

import re
from pathlib import Path

import pytest
import yaml

from nip_up.up import POOLS

FOLDER = Path(__file__).parents[2] / "deployments"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICE_KEYS = {
    "image",
    "build",
    "restart",
    "command",
    "environment",
    "ports",
    "volumes",
    "depends_on",
    "healthcheck",
    "stop_grace_period",
}
IMAGES = [FOLDER / "Dockerfile", FOLDER / "Dockerfile.cuda"]
NOT_RUN = [*IMAGES, FOLDER / "compose.yaml", *(FOLDER / "kubernetes").iterdir()]


@pytest.mark.parametrize("file", NOT_RUN, ids=lambda path: path.name)
def test_what_was_never_run_says_so_in_its_first_line(file):
    assert file.read_text().startswith("# NOT RUN: ")


def test_the_services_are_those_that_nip_up_starts():
    services = COMPOSE["services"]
    assert set(services) == {"postgresql", "prefect-server", "register", "worker"}
    for name, service in services.items():
        assert set(service) <= SERVICE_KEYS, name
        for other in service.get("depends_on", ()):
            assert other in services
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
        # Nothing listens to the network outside unless somebody changes it.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    registered = services["register"]["command"][-1]
    assert all(f"work-pool create {pool} " in registered for pool in POOLS)


def test_no_secret_stands_in_a_file():
    text = (FOLDER / "compose.yaml").read_text()
    for name in ("POSTGRES_PASSWORD", "PREFECT_SERVER_API_AUTH_STRING", "NIP_API_KEY"):
        values = re.findall(rf"^\s+{name}: (.+)$", text, re.MULTILINE)
        assert values and all(value.startswith("${") for value in values), name
    for file in NOT_RUN:
        assert not re.search(r"(sk-|password: \w)", file.read_text())


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_the_image_copies_what_it_installs(image):
    text = image.read_text()
    root = FOLDER.parent
    sources = [
        part for line in re.findall(r"^COPY (.+)$", text, re.M) for part in line.split()[:-1]
    ]
    assert {
        "nip_core",
        "packages",
        "scripts/install.py",
        "tasks",
        "flows",
        "pyproject.toml",
        "constraints.txt",
    } <= set(sources)
    assert all((root / source).exists() for source in sources)
