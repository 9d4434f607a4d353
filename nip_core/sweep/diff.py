"""What is different about two runs: settings, code, data, models and results."""

from collections.abc import Iterator
from typing import Any

from nip_core.errors import DatasetError
from nip_core.run_store.settings_difference import flatten, settings_difference
from nip_core.sweep.played import LABELS, PlayedRun, compare_tests

_OWN = ("run_name", "run_store")
"""Settings that say which run it is, and change nothing about it."""
_ABSENT = None


def find_differences(a: PlayedRun, b: PlayedRun) -> dict[str, Any]:
    """The differences of two runs, to be encoded as JSON.

    - ``settings``: by dotted key, the values of both
    - ``code``: both versions
    - ``data``: by name (``problems.test``, ``templates.prover``, ...) the digests that differ
    - ``models``: by group, for the ``first`` models and the ``last``, both with ``model`` and
      ``digest``, and whether the weights are the ``same`` (None: not known)
    - ``results``: for the ``first`` test and the ``last`` of both, where there are such, by rate
      the values of both and the paired `difference` (b less a) with its ``ci95`` and ``p``
    - ``not_compared``: why there are no results, if there are none
    """
    settings = settings_difference(a.record.parameters, b.record.parameters)
    contents = [flatten(dict(run.record.contents)) for run in (a, b)]
    names = sorted(name for name in {*contents[0], *contents[1]})
    differing: dict[str, Any] = {
        "runs": [{"run": run.name, "place": run.place, "status": run.status} for run in (a, b)],
        "settings": {
            key: list(values)
            for key, values in settings.items()
            if key not in _OWN and not key.endswith("_type")
        },
        "code": [run.record.code_version for run in (a, b)],
        "data": {
            name: [of.get(name) for of in contents]
            for name in names
            if contents[0].get(name) != contents[1].get(name)
        },
        "models": _models(a, b),
        "results": [],
        "not_compared": None,
    }
    try:
        differing["results"] = list(_results(a, b))
    except DatasetError as error:
        differing["not_compared"] = str(error)
    if not differing["results"] and differing["not_compared"] is None:
        untested = " and ".join(repr(run.name) for run in (a, b) if not run.tests)
        differing["not_compared"] = f"there is no test yet of {untested}"
    return differing


def _models(a: PlayedRun, b: PlayedRun) -> dict[str, dict[str, Any]]:
    last = [_last_models(run) for run in (a, b)]
    first = [_first_models(run) for run in (a, b)]
    groups = [*first[0], *(group for group in first[1] if group not in first[0])]
    return {
        group: {
            when: _pair([of.get(group) for of in both])
            for when, both in (("first", first), ("last", last))
        }
        for group in groups
    }


def _pair(models: list[dict[str, Any] | None]) -> dict[str, Any]:
    known = [model and (model["digest"] or model["base"]) for model in models]
    same = known[0] == known[1] if all(known) else None
    return {"a": models[0], "b": models[1], "same": same}


def _first_models(run: PlayedRun) -> dict[str, dict[str, Any]]:
    names = run.records.shown.first_models
    return {group: {"model": name, "digest": None, "base": name} for group, name in names.items()}


def _last_models(run: PlayedRun) -> dict[str, dict[str, Any]]:
    swaps = [record.swap for record in run.records.all() if record.swap is not None]
    if not swaps:
        return _first_models(run)
    return {
        group: {
            "model": model["model"],
            "digest": model.get("digest"),
            # A model that was not trained is known by its name.
            "base": model["model"] if model.get("trained_in") is None else None,
        }
        for group, model in swaps[-1]["groups"].items()
    }


def _results(a: PlayedRun, b: PlayedRun) -> Iterator[dict[str, Any]]:
    """The first tests compared, and the last ones where these are others."""
    if not a.tests or not b.tests:
        return
    pairs = {"first": (a.tests[0], b.tests[0]), "last": (a.tests[-1], b.tests[-1])}
    for when, (of_a, of_b) in pairs.items():
        if when == "last" and pairs["first"] == pairs["last"]:
            return
        differences = compare_tests((a, of_a), (b, of_b))
        tests = (a.test(of_a).as_json(), b.test(of_b).as_json())
        yield {
            "test": when,
            "iterations": [of_a, of_b],
            "rates": {
                rate: {"a": tests[0].get(rate), "b": tests[1].get(rate), **differences[rate]}
                for rate in LABELS
            },
        }
