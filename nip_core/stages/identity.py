"""What a run's name stands for: settings, and the content of what they name.

identity      all of it, as `RunStore.create_or_open` takes it
code_version  the version of nip that runs
"""

import hashlib
import inspect
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import nip_core
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.models import resolve_model
from nip_core.parameters import DATA_NEUTRAL, HyperParameters
from nip_core.protocols import find_protocol
from nip_core.scenarios.code_validation.datasets import Problem
from nip_core.stages.origin import Origin
from nip_core.stages.providers import Endpoints


def identity(parameters: HyperParameters, contents: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's name stands for: settings, and the content of the files they name."""
    return {
        "parameters": parameters.to_dict(),
        "contents": contents,
        "code_version": code_version(),
        "seed": parameters.seed,
        "data_neutral": DATA_NEUTRAL,
    }


def contents_of(
    game: Game,
    problems: Mapping[str, list[Problem]],
    endpoints: Mapping[str, Endpoints],
    origin: Origin,
) -> dict[str, Any]:
    """Digests of everything outside the settings that decides the data.

    Problems, and templates and protocols that are not nip's own, whole; a replies file whole; of a
    model directory names, sizes and the first megabyte of each file, so that large weights are not
    read; by group the addresses of servers, play and control; and the models that come from other
    runs.
    """
    parameters = game.parameters
    contents: dict[str, Any] = {
        "problems": {split: problems_digest(chosen) for split, chosen in problems.items()},
        "templates": template_digests(game),
        "addresses": {
            group: sorted({at.play.base_url, at.control.base_url})
            for group, at in sorted(endpoints.items())
        },
        "models": {},
        "replies": None,
    }
    if origin.models:
        contents["origin"] = origin.facts()
    protocol = find_protocol(parameters.interaction_protocol)
    if ":" in parameters.interaction_protocol:
        contents["protocol"] = digest(Path(inspect.getfile(protocol)).read_text(encoding="utf-8"))
    for agent in parameters.model_agents.values():
        path = Path(resolve_model(agent.model_name)).expanduser()
        is_hosted = agent.model_provider == "SelfHosted" and not agent.use_dummy_api
        if is_hosted and path.is_dir():
            contents["models"][agent.model_name] = _directory_digest(path)
    if parameters.lm_server.replies is not None:
        contents["replies"] = digest(
            Path(parameters.lm_server.replies).read_text(encoding="utf-8", errors="replace")
        )
    return contents


def template_digests(game: Game) -> dict[str, str]:
    """By agent, of the prompt templates that are not nip's own."""
    protocol = find_protocol(game.parameters.interaction_protocol)
    digests = {}
    for name, agent in game.parameters.model_agents.items():
        if agent.system_prompt_template_path is not None:
            text = Path(agent.system_prompt_template_path).read_text(encoding="utf-8")
            digests[name] = digest(text)
        elif protocol.template_directory is not None:
            digests[name] = digest(game.prompts.template(name).template)
    return digests


def problems_digest(problems: list[Problem]) -> str:
    """What a split's problems are, in their order."""
    return digest([[p.id, p.question, p.solution, p.y] for p in problems])


def _directory_digest(directory: Path) -> str:
    facts = []
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            head = hashlib.sha256(opened.read(1 << 20)).hexdigest()
        facts.append([str(file.relative_to(directory)), file.stat().st_size, head])
    return digest(facts)


@lru_cache(maxsize=1)
def code_version() -> str:
    """The version of nip, with the commit where it runs from a checkout."""
    root = Path(nip_core.__file__).parent.parent
    if not (root / ".git").exists():
        return nip_core.__version__
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):  # no git here
        return nip_core.__version__
    commit = asked.stdout.strip()
    return f"{nip_core.__version__}+{commit}" if commit else nip_core.__version__
