"""Kubernetes manifests against the schemas of Kubernetes itself."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

pytestmark = [pytest.mark.cluster, pytest.mark.short]
FOLDER = Path(__file__).parents[2] / "deployments" / "kubernetes"
VERSION = "1.30"


def filled_in(value, variables):
    """A job template with its variables' defaults, as Prefect fills it in."""
    if isinstance(value, dict):
        return {key: filled_in(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled_in(inner, variables) for inner in value]
    if not isinstance(value, str):
        return value
    for name, variable in variables.items():
        if value == "{{ " + name + " }}":
            # Prefect turns the mapping of variables into Kubernetes' list.
            return [] if name == "env" else variable["default"]
        value = value.replace("{{ " + name + " }}", str(variable["default"]))
    assert "{{" not in value, value
    return value


@pytest.mark.parametrize("name", ["job-template", "gpu-job-template"])
def test_a_job_template_makes_a_job_that_kubernetes_knows(name):
    template = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    variables = template["variables"]["properties"]
    job = filled_in(template["job_configuration"], variables)["job_manifest"]
    kubernetes_validate.validate(job, VERSION, strict=True)
    limits = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert ("nvidia.com/gpu" in limits) == (name == "gpu-job-template")


def test_the_worker_is_what_kubernetes_knows():
    for document in yaml.safe_load_all((FOLDER / "worker.yaml").read_text()):
        kubernetes_validate.validate(document, VERSION, strict=True)
