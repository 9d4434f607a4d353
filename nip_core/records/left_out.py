"""Problems that are too long for a model: left out of the run, and on record.

LeftOut            by split, by problem, the tokens that were measured
settle_left_out    the problems that a run leaves out, or why it can not begin
read_left_out      the record of a run; read_left_out_by_settings, of the run that settings name
record_left_out    puts it there
drop_left_out      problems without those that are left out
describe_left_out  how many of each split

How long a prompt is, only the model's server can say, so it is settled when the run begins, with
its server up. From then on ``left_out.json`` says which problems are left out, so that a run that
goes on plays the same ones. An agent's first prompt is measured, with room for one answer.
A conversation that outgrows the context later fails its episode. Servers that do not count tokens
leave out nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.run_store.lease import Lease
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import is_missing, open_store
from nip_core.scenarios import Problem

Facts = Mapping[str, Any]
"""``agent``, and in tokens ``prompt`` (null: far more than the context), ``answer`` (as long as it
may be) and ``context``."""
LeftOut = Mapping[str, Mapping[str, Facts]]


def read_left_out_by_settings(parameters: HyperParameters) -> LeftOut | None:
    """Read the record of a run on this machine's disks, if there is such a run; write nothing."""
    place = parameters.run_store
    # No bucket is asked: this serves estimates, which may count a few problems too many.
    if "://" in place or is_missing(place, "run_store"):
        return None
    return read_left_out(RunStore(open_store(place, read_only=True), parameters.run_name))


def read_left_out(run: RunStore) -> LeftOut | None:
    """By split and problem, the facts of those left out; None before the run began."""
    document = run.read_json_or_none(_path(run))
    return None if document is None else dict(document["too_long"])


def drop_left_out(problems: Mapping[str, list[Problem]], out: LeftOut) -> dict[str, list[Problem]]:
    """Return the problems of each split without those left out."""
    return {
        split: [problem for problem in all_ if problem.id not in out.get(split, {})]
        for split, all_ in problems.items()
    }


def settle_left_out(
    parameters: HyperParameters,
    problems: Mapping[str, Sequence[Problem]],
    on_record: LeftOut | None,
    long_prompts: Mapping[str, Facts],
) -> LeftOut:
    """Decide the problems that the run leaves out: those on record, or else the `long_prompts`.

    Raises SettingsError if nothing may be left out, if nothing of a split would be left, or if
    problems are too long now that were not when the run began.
    """
    # One problem, the first, says enough: the remedy is the same for all.
    if long_prompts and (on_record is not None or parameters.dataset_options.on_too_long == "stop"):
        problem, facts = next(iter(long_prompts.items()))
        size = "more than all" if facts["prompt"] is None else facts["prompt"]
        takes = (
            f"agents.{facts['agent']}: the prompt for problem {problem!r} takes {size} of "
            f"{facts['context']} tokens and leaves too few of the {facts['answer']} that a message "
            "may need"
        )
        if on_record is not None:
            raise SettingsError(
                f"{takes}, which was not so when the run began; go on with the model and the "
                "context of then"
            )
        raise SettingsError(
            f"{takes}; lower max_tokens_per_message, use shorter problems or another model, or set "
            "dataset_options.on_too_long to leave_out"
        )
    # The record holds: a run that goes on plays the same problems.
    if on_record is not None:
        return on_record
    out = {
        split: {
            problem.id: long_prompts[problem.id] for problem in all_ if problem.id in long_prompts
        }
        for split, all_ in problems.items()
    }
    for split, all_ in problems.items():
        # Validation problems are for the gate alone.
        is_played = split != "validation" or parameters.promotion.enabled
        if is_played and all_ and len(out[split]) == len(all_):
            agents = sorted({str(facts["agent"]) for facts in out[split].values()})
            raise SettingsError(
                f"all {len(all_):,} {split} problems are too long for the model of "
                f"{', '.join(agents)}: lower max_tokens_per_message, use shorter problems or "
                "another model"
            )
    return out


def record_left_out(run: RunStore, out: LeftOut, lease: Lease) -> None:
    """Write down the problems that the run leaves out; an earlier record stays."""
    run.write_json_once(_path(run), {"too_long": out}, lease=lease)


def describe_left_out(out: LeftOut) -> str:
    """Return how many problems of each split are left out; empty if none are."""
    counts = {split: len(problems) for split, problems in sorted(out.items()) if problems}
    if not counts:
        return ""
    noun = "problem" if sum(counts.values()) == 1 else "problems"
    words = " and ".join(f"{count:,} {split}" for split, count in counts.items())
    return f"{words} {noun} left out, too long for a model"


def _path(run: RunStore) -> str:
    return f"{run.root}/left_out.json"
