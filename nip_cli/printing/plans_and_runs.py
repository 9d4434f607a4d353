"""The lines that `nip` prints of plans and runs."""

import json
import shlex
import shutil
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from nip_cli.printing.attacks import show_attack
from nip_cli.printing.console import make_console
from nip_cli.printing.terminal import say
from nip_core.costs.spent_and_estimated import USD, make_cost_rows
from nip_core.evaluation.baseline_words import believed_line
from nip_core.evaluation.figures_in_words import (
    amount,
    file_size,
    gate_line,
    group_reasons,
    list_spans,
    plain_percent,
    problems_words,
)
from nip_core.evaluation.split_metrics import Opponent, SplitMetrics
from nip_core.parameters import HyperParameters
from nip_core.progress.phases import describe_phases
from nip_core.progress.words import format_clock
from nip_core.records.models import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console

    from nip_cli.printing.options import Shown
    from nip_core.attack_figures.metrics_document import Reach
    from nip_core.costs.estimate import Estimate

_LARGE_CHANGE = 0.15  # of accuracy, between two tests
_COUNTS = ("distinct_problems", "questions")
_ROOM_FOR_JOBS = 110  # columns, for the jobs of two groups in a line
_ROOM_FOR_ALL = 72  # columns, for all figures of an iteration in a line


def show_plan(parameters: HyperParameters, as_json: bool) -> None:
    """Print settings other than the defaults, an estimate, and on standard error the warnings.

    As JSON it is all settings.
    """
    from nip_core.jobs.services import plan_trainings
    from nip_core.records.left_out import describe_left_out, read_left_out_by_settings
    from nip_core.run_store.store import check_location
    from nip_core.session.attacked_run import describe_attack, plan_reach
    from nip_core.session.prepare import plan_run

    check_location(parameters.run_store)
    parameters, estimate, origin = plan_run(parameters)
    warn_of_models([parameters])
    left_out = read_left_out_by_settings(parameters)
    tokens = estimate.expected_training_by_group
    trainings = plan_trainings(parameters, estimate.read_examples, tokens)
    if as_json:
        counts = None if left_out is None else {s: len(out) for s, out in left_out.items()}
        reach = plan_reach(parameters)
        entry = {"estimate": asdict(estimate), "left_out": counts, "origin": origin.facts()}
        entry |= reach_entry(reach)
        if trainings:
            entry["trainings"] = {group: plan.facts for group, plan in trainings.items()}
        print_json({"parameters": parameters.to_dict(), **entry})
        _warn(parameters, estimate)
        return
    import yaml

    say("# what differs from the defaults; nip train CONFIG --dry-run --json has all settings")
    differing = parameters.model_dump(mode="json", exclude_defaults=True)
    say(yaml.safe_dump(differing, sort_keys=False, allow_unicode=True))
    # An attack by chosen messages or by a script has none, and trains no agent.
    does = amount(estimate.iterations, "iteration") if estimate.iterations else "no training"
    say(f"{does}, nothing was started:")
    for group, model in origin.models[0].items() if origin.models else ():
        if model.from_run is not None:
            say(f"  {group} begins with {model.model}, of {model.from_run}")
    if estimate.iterations or estimate.test_episodes:
        say(
            f"  {estimate.train_episodes:,} training and "
            f"{amount(estimate.test_episodes, 'test episode')}"
        )
    for line in describe_attack(parameters, estimate.attack_episodes):
        say(f"  {line}")
    if estimate.gate_episodes:
        say(f"  {amount(estimate.gate_episodes, 'validation episode')} to choose models by")
    if line := _detectable(estimate):
        say(f"  {line}")
    for plan in trainings.values():
        say(f"  {plan.words}")
    measures = any(agent.provider.is_lm_server for agent in parameters.model_agents.values())
    if left_out is not None:
        say(f"  {describe_left_out(left_out) or 'no problems left out, too long for a model'}")
    elif measures and parameters.dataset_options.on_too_long == "leave_out":
        say("  problems too long for a model are left out, which its server says at the start")
    say(f"  at most {file_size(estimate.disk_bytes)} on disk, models not counted")
    _print_costs(parameters, estimate)
    _warn(parameters, estimate)


def warn_of_models(plans: "Iterable[HyperParameters]") -> None:
    """Print which models' names nothing could explain. Raises SettingsError for a wrong one."""
    from nip_core.session.named_models import list_unanswered

    for line in list_unanswered(*plans):
        say(f"nip: warning: {line}", file=sys.stderr)


def _warn(parameters: HyperParameters, estimate: "Estimate") -> None:
    """Print on standard error what is probably not meant, after everything else."""
    from nip_core.parameters.shutdowns import list_shutdown_warnings
    from nip_core.servers.missing_packages import list_missing_packages
    from nip_core.session.attacked_run import warn_of_untold
    from nip_core.trainers.expert_iteration import list_price_warnings

    sys.stdout.flush()
    for line in (
        *_few_examples(parameters, estimate.train_episodes),
        *_unreachable_threshold(parameters),
        *list_price_warnings(parameters),
        *list_shutdown_warnings(parameters, datetime.now(UTC).date()),
        *_short_budget(parameters, estimate),
        *_shows_little(parameters, estimate),
        *warn_of_untold(parameters),
        *list_missing_packages(parameters),
    ):
        say(f"nip: warning: {line}", file=sys.stderr)


def _print_costs(parameters: HyperParameters, estimate: "Estimate") -> None:
    from nip_core.costs.caps import list_caps
    from nip_core.evaluation.figures_in_words import cap_amount
    from nip_core.parameters.derived.hosting import has_own_model
    from nip_core.parameters.derived.prices import write_price_lines

    rows = {
        "calls": (estimate.expected_calls, estimate.calls),
        "prompt tokens": (estimate.expected_prompt_tokens, estimate.prompt_tokens),
        "generated tokens": (estimate.expected_completion_tokens, estimate.completion_tokens),
        "tokens trained on": (estimate.expected_training_tokens, estimate.training_tokens),
    }
    say(f"  {'':<20}{'expected':>16}{'at most':>16}")
    for name, (expected, maximum) in rows.items():
        say(f"  {name:<20}{expected:>16,}{maximum:>16,}")
    if estimate.usd is None or estimate.expected_usd is None:
        say("  cost unknown: add to the configuration, with US dollars per million tokens,")
        say("\n".join(f"    {line}" for line in ("prices:", *write_price_lines(parameters))))
    else:
        say(f"  {'US dollars':<20}{estimate.expected_usd:>16,.2f}{estimate.usd:>16,.2f}")
    say(f"  expected: {estimate.expected_by}")
    say("  at most: an upper bound, but for answers that have to be asked for again")
    if has_own_model(parameters):
        guessed = "; guessed are the lengths of messages and the ends of games"
        say(
            "  time: told by the run, which measures its server's speed before the first episode"
            f"{guessed if estimate.is_rough else ''}"
        )
    for cap, limit in list_caps(parameters).items():
        is_free = cap == "usd" and estimate.usd == 0
        never = ", which is never reached: nothing here has a price" if is_free else ""
        say(f"  budget: {cap_amount(cap, limit)}{never}")


def _short_budget(parameters: HyperParameters, estimate: "Estimate") -> "Iterator[str]":
    """Warn of a cap below the run's expected use."""
    from nip_core.costs.caps import list_caps
    from nip_core.evaluation.figures_in_words import cap_amount

    expected = {"usd": estimate.expected_usd, "tokens": estimate.expected_tokens}
    for cap, limit in list_caps(parameters).items():
        if (expected[cap] or 0) > limit:
            takes = cap_amount(cap, expected[cap] or 0)
            yield (
                f"budget.{cap}: the run is expected to take {takes} and stops at "
                f"{cap_amount(cap, limit)}"
            )


def _detectable(estimate: "Estimate") -> str:
    """Say how small a change of accuracy two tests would show; "" where there is but one test."""
    from nip_core.evaluation.statistics.power import CHANGED, LIKENESS, POWER

    if estimate.smallest_change is None:
        return ""
    problems = problems_words(estimate.test_problems, estimate.test_questions)
    alike = ""
    if estimate.test_questions < estimate.test_problems:
        alike = f", correlated by {LIKENESS:g} within a question"
    assumed = f"assumed: {100 * CHANGED:.0f} % of the verdicts change{alike}"
    return (
        f"tests of {problems}: two iterations must differ by {100 * estimate.smallest_change:.1f} "
        f"points to show it at {100 * POWER:.0f} % power ({assumed})"
    )


def _shows_little(parameters: HyperParameters, estimate: "Estimate") -> "Iterator[str]":
    """Warn of tests too small to show any but a large change; scripted answers teach nothing."""
    change = estimate.smallest_change
    is_scripted = not parameters.lm_server.capabilities.has_weights
    is_measured = any(
        not (agent.use_dummy_api or (is_scripted and agent.provider.is_lm_server))
        for agent in parameters.model_agents.values()
    )
    if change is None or change <= _LARGE_CHANGE or not is_measured:
        return
    problems = problems_words(estimate.test_problems, estimate.test_questions)
    yield (
        f"tests of {problems} can hardly show that accuracy changed by less than "
        f"{100 * change:.1f} points, so the run may show nothing; test on more questions, of a "
        "larger dataset or by dataset_options.max_test_size"
    )


def _few_examples(parameters: HyperParameters, train_episodes: int) -> "Iterator[str]":
    from nip_base.formats import MIN_EXAMPLES

    iterations = parameters.rl.num_iterations - parameters.imitates(0)  # that play
    is_rerun = parameters.base_run.base_run_type == "rerun_tests"
    if not parameters.trainable_groups or iterations == 0 or is_rerun:
        return
    if (rollouts := train_episodes // iterations) < MIN_EXAMPLES:
        yield (
            f"{rollouts} rollouts per iteration give few training examples; a fine-tune job with "
            f"fewer than {MIN_EXAMPLES} is skipped; raise rl.rollouts_per_iteration"
        )


def _unreachable_threshold(parameters: HyperParameters) -> "Iterator[str]":
    from nip_core.trainers.expert_iteration import find_never_chosen

    if parameters.trainer != "pure_text_ei" or parameters.base_run.base_run_type == "rerun_tests":
        return  # other trainers have no threshold, or not for long
    threshold = parameters.pure_text_ei.reward_threshold
    for agent, share in find_never_chosen(parameters).items():
        yield (
            f"agents.{agent} can earn at most {share:g} in an episode, less than "
            f"pure_text_ei.reward_threshold, {threshold:g}, so it is never trained; use "
            "rollout_selection_method: weighted_sampling, or freeze_agent: true"
        )


def reach_entry(reach: "Reach | None") -> dict[str, Any]:
    """Return the same for programs; {} where it samples nothing."""
    return {} if reach is None else {"reach": reach.as_json()}


def print_json(value: Any) -> None:
    """A value as JSON."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def show_result(
    result: Any, as_json: bool, display: "Shown", show: "Callable[[Any], None]"
) -> None:
    """The result of a command: for people by `show`, or as JSON; as a last line of JSON lines."""
    from nip_cli.printing.options import Shown

    if as_json:
        print_json(result)
    elif display is Shown.json:
        say(json.dumps({"event": "result", "result": result}, ensure_ascii=False, default=str))
    else:
        show(result)


def print_viewer(place: str) -> None:
    """Print the command to see the run at STORE/NAME in a browser."""
    store, _, name = place.rpartition("/")
    is_default = "://" not in store and Path(store).absolute() == Path("runs").absolute()
    typed = shlex.join(["nip", "view", name if is_default else place])
    say(f"every episode, in a browser: {typed}")


def _show_stopped(stopped: dict[str, Any], costs: dict[str, Any]) -> None:
    """Print a stopped run's progress, a spent budget, and the command that goes on with it."""
    finished, last = stopped["finished"], stopped["iterations"]
    progress = (
        f"{finished} of {last} iterations finished; in iteration {finished}" if last else "so far"
    )
    say(f"{progress}: {stopped['doing']}")
    same = "the command that began it, with the same configuration"
    say(f"go on where it stopped: {stopped['go_on'] or same}")
    for cap in ("tokens", "usd"):
        expense, budget = costs[cap]["spent"], costs[cap]["budget"]
        if budget is not None and expense is not None and expense >= budget:
            say(f"its budget is spent: raise it by --set budget.{cap}=…, above {expense:,.12g}")


def _jobs_cell(statuses: dict[str, str], width: int) -> str:
    """Return what became of the jobs; of each where there is room, or where their ends differ."""
    if width < _ROOM_FOR_JOBS and len(set(statuses.values())) == 1:
        return f"{len(statuses)} {next(iter(statuses.values()))}"
    return ", ".join(f"{group} {status}" for group, status in statuses.items()) or "-"


def _tell_untrained(iterations: list[dict[str, Any]]) -> "Iterator[str]":
    """Say the reasons of jobs without a model, equal ones in one line."""
    by_job: dict[tuple[str, str], dict[int, str]] = {}
    for entry in iterations:
        for group, job in entry["jobs"].items():
            if job.get("reason"):
                reasons = by_job.setdefault((group, job["status"]), {})
                reasons[entry["iteration"]] = job["reason"]
    for (group, status), reasons in by_job.items():
        for reason, numbers in group_reasons(reasons):
            plural = "" if len(numbers) == 1 else "s"
            yield f"iteration{plural} {list_spans(numbers)}, {group}: {status}: {reason}"


def _show_costs(costs: dict[str, dict[str, float | None]], console: "Console") -> None:
    """Print what the run has spent beside what it was expected to."""
    rows = make_cost_rows(costs)
    has_budget = any(row[-1] is not None for row in rows.values())
    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("of the whole run", no_wrap=True)
    for heading in ("spent", "expected", "at most", *(["budget"] if has_budget else [])):
        table.add_column(heading, justify="right", no_wrap=True, min_width=10)
    for name, row in rows.items():
        form = "{:,.2f}" if name == USD else "{:,.0f}"
        cells = ("-" if value is None else form.format(value) for value in row)
        table.add_row(name, *list(cells)[: 4 if has_budget else 3])
    console.print(table)


def _show_baselines(result: dict[str, Any], console: "Console") -> None:
    """Print what the accuracy is held against: an obedient verifier, and the same one asked again.

    It stands where the number does, as an accuracy shows nothing without it.
    """
    tests = [(e["iteration"], e["test"]) for e in result["iterations"] if e["test"]]
    for iteration, test in dict([*tests[:1], *tests[-1:]]).items():
        if line := believed_line(SplitMetrics.model_validate(test)):
            say(f"iteration {iteration}: {line}")
    for remark in result.get("remarks", ()):
        console.print(remark, highlight=False, markup=False)
    voted = [(iteration, test["any_of"]) for iteration, test in tests if test.get("any_of")]
    for iteration, rows in voted[-1:]:
        say(f"iteration {iteration}, rejecting where any of k plays of a problem rejects:")
        table = Table(box=SIMPLE_HEAD, padding=0)
        for heading in ("k", "soundness", "completeness", "generated tokens a problem"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            rates = (plain_percent(row[name]) for name in ("soundness", "completeness"))
            table.add_row(str(row["k"]), *rates, f"{row['generated_tokens']:,.0f}")
        console.print(table)


def _show_league(iterations: list[dict[str, Any]], console: "Console") -> None:
    """Print how training episodes ended against the models of each iteration."""
    from nip_core.evaluation.league_figures import opponent_words

    say("training episodes by opponent:")
    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("iteration", justify="right", no_wrap=True)
    table.add_column("opponent", overflow="fold")
    for heading in ("episodes", "accuracy", "95 % interval", "completeness", "soundness"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in iterations:
        for row in entry.get("league", ()):
            interval = row["accuracy_ci95"]
            table.add_row(
                str(entry["iteration"]),
                opponent_words(Opponent.model_validate(row)),
                f"{row['episodes']:,}",
                plain_percent(row["accuracy"]),
                f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else "-",
                plain_percent(row["completeness"]),
                plain_percent(row["soundness"]),
            )
    console.print(table)


def show_run(result: dict[str, Any]) -> None:
    """A table of the iterations of a run, and the ends of their jobs."""
    width = shutil.get_terminal_size((80, 24)).columns
    is_narrow = width < _ROOM_FOR_ALL
    console = make_console(width=width)
    attack = result.get("attack", {})
    for words in filter(None, (attack.get("caution"), *attack.get("causes", ()))):
        say(words)  # before any figure
    waits_for = f": {result['waits_for']}" if "waits_for" in result else ""
    console.print(f"run {result['run']}: {result['status']}{waits_for}")
    if "stopped" in result:
        _show_stopped(result["stopped"], result["costs"])
    left_out = [f"{n} {split}" for split, n in result.get("left_out", {}).items() if n]
    if left_out:
        console.print(f"problems too long for a model: {', '.join(left_out)}")
    # Nothing but the jobs may be broken into lines; a narrow terminal gets fewer figures.
    table = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("iteration", "accuracy", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in () if is_narrow else ("completeness", "soundness", "problems"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("jobs", overflow="fold")
    for entry in result["iterations"]:
        test = entry["test"]
        if "attack" in result and test is None and not entry["jobs"]:
            continue  # an attack's own tables have what it is about
        interval = (test or {}).get("accuracy_ci95")
        figures = (
            plain_percent(test and test["completeness"]),
            plain_percent(test and test["soundness"]),
            f"{test['distinct_problems']:,}" if test and test["distinct_problems"] else "-",
        )
        table.add_row(
            str(entry["iteration"]),
            plain_percent(test and test["accuracy"]),
            f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else "-",
            *(() if is_narrow else figures),
            _jobs_cell({group: job["status"] for group, job in entry["jobs"].items()}, width),
        )
    if table.row_count:
        console.print(table)
    tests = [entry["test"] for entry in result["iterations"] if entry["test"]]
    problems, questions = (tests[-1].get(key) if tests else None for key in _COUNTS)
    if problems and questions and questions < problems:
        problems_text = problems_words(problems, questions)
        say(f"intervals are by question: {problems_text} were tested")
    _show_baselines(result, console)
    if any("league" in entry for entry in result["iterations"]):
        _show_league(result["iterations"], console)
    _show_costs(result["costs"], console)
    if result.get("expected_by"):
        console.print(f"expected: {result['expected_by']}", highlight=False, markup=False)
    if phases := describe_phases([entry.get("seconds", {}) for entry in result["iterations"]]):
        all_s = format_clock(sum(spent_s for _, spent_s, _ in phases))
        shares = "; ".join(f"{words} {plain_percent(share)}" for words, _, share in phases)
        line = f"time of the iterations on record, {all_s}: {shares}"
        console.print(line, highlight=False, markup=False)
    if "attack" in result:
        show_attack(result["attack"], console)
    for entry in result["iterations"]:
        if entry.get("promotion"):
            decision = Decision(**entry["promotion"])
            say(f"iteration {entry['iteration']}: new models {gate_line(decision)}")
    for line in _tell_untrained(result["iterations"]):
        say(line)
    if result.get("report"):
        # Not through the console: a path must not be wrapped.
        say(f"report: {result['report']}")
        print_viewer(str(result["report"]).rpartition("/")[0])
