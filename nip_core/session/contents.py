"""Digests of everything outside the settings that decides a run's data, and the version of nip.

digest_contents    of problems, templates, classes, replies, model directories, addresses, models
name_places        the files and classes that have a digest there
digest_templates   of the prompt templates that are not nip's own
digest_problems    of a split's problems
digest_directory   of a model's directory
read_code_version  the version of nip that runs
"""

import hashlib
import inspect
import os
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from nip_base.formats.bounds import ReadError
from nip_base.formats.untrusted import read_text
from nip_base.importing import find_file
from nip_base.published.added_models import read_digest
from nip_core.distribution import __version__
from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.models import KNOWN, locate_model
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.services.providers import Provider
from nip_core.protocols import find_protocol
from nip_core.scenarios import Problem, find_scenario
from nip_core.servers.endpoints import Endpoints
from nip_core.session.attack_files import digest_files, name_changed_files
from nip_core.session.opponent_runs import digest_opponents
from nip_core.session.origin import Origin


def digest_contents(
    game: Game,
    problems: Mapping[str, list[Problem]],
    endpoints: Mapping[str, Endpoints],
    origin: Origin,
) -> dict[str, Any]:
    """Digest everything outside the settings with a say in the data.

    Problems, and templates and protocols that are not nip's own, whole; a replies file whole; of a
    model directory names, sizes and the first megabyte of each file, so that large weights are not
    read; by group the addresses of servers, play and control; and the models that come from other
    runs.
    """
    parameters = game.parameters
    contents: dict[str, Any] = {
        "problems": {
            split: digest_problems(split_problems) for split, split_problems in problems.items()
        },
        "templates": digest_templates(game),
        "addresses": {
            group: sorted({address.play.base_url, address.control.base_url})
            for group, address in sorted(endpoints.items())
        },
        "models": {},
        "replies": None,
    }
    if origin.models:
        contents["origin"] = origin.facts()
    protocol = find_protocol(parameters.interaction_protocol)
    if ":" in parameters.interaction_protocol:
        contents["protocol"] = digest(Path(inspect.getfile(protocol)).read_text(encoding="utf-8"))
    if ":" in parameters.scenario:
        kind = find_scenario(parameters.scenario)
        source = Path(inspect.getfile(kind)).read_text(encoding="utf-8", errors="replace")
        contents["scenario"] = digest(source)
    if providers := _list_own_providers(game):
        contents["providers"] = {
            agent: digest(Path(inspect.getfile(provider)).read_text(encoding="utf-8"))
            for agent, provider in providers.items()
        }
    contents |= digest_files(game)
    if game.reward_function is not None:
        source = Path(game.reward_function.file).read_text(encoding="utf-8", errors="replace")
        contents["reward_function"] = digest(source)
    if of_opponents := digest_opponents(game):
        contents["opponents"] = of_opponents
    for agent in parameters.model_agents.values():
        path = Path(os.path.expanduser(locate_model(agent.model_name)))
        names_weights = agent.provider.names_weights
        if names_weights and agent.model_name in KNOWN:
            # Read whole when it was checked. The deterministic engine has no model, and another
            # server has its own by this name.
            if find_host(parameters, agent).loads_weights:
                contents["models"][agent.model_name] = read_digest(KNOWN[agent.model_name])
        elif names_weights and os.path.isdir(path):
            contents["models"][agent.model_name] = digest_directory(path)
    engine_file = find_file(parameters.lm_server.engine)
    if engine_file is not None:
        contents["engine"] = digest(engine_file.read_text(encoding="utf-8", errors="replace"))
    if parameters.lm_server.replies is not None:
        contents["replies"] = digest(_text_of(Path(parameters.lm_server.replies)))
    return contents


def name_places(game: Game) -> dict[str, str]:
    """Name by key of `digest_contents` a user's files and classes with a digest there."""
    parameters = game.parameters
    places = {
        f"templates.{agent}": f"the prompt template {path}, with what is added to it,"
        for agent, path in game.prompts.paths.items()
    }
    if ":" in parameters.interaction_protocol:
        places["protocol"] = _place_of(find_protocol(parameters.interaction_protocol))
    if ":" in parameters.scenario:
        places["scenario"] = _place_of(find_scenario(parameters.scenario))
    for agent, provider in _list_own_providers(game).items():
        places[f"providers.{agent}"] = _place_of(provider)
    places |= name_changed_files(game)
    if (function := game.reward_function) is not None:
        place = f"{function.file}, in which function {function.called} stands,"
        places["reward_function"] = place
    engine_file = find_file(parameters.lm_server.engine)
    if engine_file is not None:
        places["engine"] = f"{engine_file}, in which the engine of lm_server.engine stands,"
    if parameters.lm_server.replies is not None:
        places["replies"] = str(parameters.lm_server.replies)
    return places


def _list_own_providers(game: Game) -> dict[str, type[Provider]]:
    """List by agent the providers of the user's own."""
    agents = game.parameters.model_agents
    return {name: agent.provider for name, agent in agents.items() if ":" in agent.model_provider}


def _place_of(kind: type) -> str:
    return f"{inspect.getfile(kind)}, in which class {kind.__name__} stands,"


def _text_of(replies: Path) -> str:
    try:
        return read_text(replies)
    except ReadError as error:
        raise SettingsError(f"lm_server.replies: {replies} {error}; name a file of text") from None


def digest_templates(game: Game) -> dict[str, str]:
    """Digest by agent the prompt templates from outside of nip."""
    protocol = find_protocol(game.parameters.interaction_protocol)
    digests = {}
    for name, agent in game.parameters.model_agents.items():
        if agent.system_prompt_template_path is not None:
            digests[name] = digest(game.prompts.texts[name])
        elif protocol.template_directory is not None or ":" in game.parameters.scenario:
            digests[name] = digest(game.prompts.template(name).template)
    return digests


def digest_problems(problems: list[Problem]) -> str:
    """The digest of a split's problems, in their order."""
    further = [{**p.columns} for p in problems]
    facts = [[p.id, p.question, p.solution, p.y] for p in problems]
    # Without columns nothing stands for them: runs of before there were any keep their digest.
    return digest([[*f, c] if c else f for f, c in zip(facts, further, strict=True)])


def digest_directory(directory: Path) -> str:
    """Digest a model's directory: names, sizes and the first megabyte of each file."""
    facts = []
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            # Not the whole: weights of gigabytes would be read at every start. Names and sizes go
            # in as well.
            head = hashlib.sha256(opened.read(1 << 20)).hexdigest()
        # All bytes of its name, also those that are no text.
        name = os.fsencode(file.relative_to(directory)).decode(errors="backslashreplace")
        facts.append([name, file.stat().st_size, head])
    return digest(facts)


@lru_cache(maxsize=1)
def read_code_version() -> str:
    """The version of nip, with the commit where it runs from a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return __version__
    try:
        process = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):  # no git here
        return __version__
    commit = process.stdout.strip()
    return f"{__version__}+{commit}" if commit else __version__
