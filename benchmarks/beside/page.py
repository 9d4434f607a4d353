"""The page of docs/results that says what side_by_side measured."""

import json
import textwrap
from collections.abc import Callable
from copy import deepcopy
from math import ceil
from statistics import median
from typing import Any

from beside.summary import table
from beside.weights import CASES

WIDTH = 120
_SWAP = (
    "nip: from the commit of an adapter that a job has trained to the first answer of a client "
    "that waits for the job and asks then; it is loaded and proved in between. vLLM by hand: "
    "`/v1/load_lora_adapter` with the same directory, and the first answer. SkyRL: "
    "`save_weights_and_get_sampling_client` of the Tinker SDK, and the first answer of that "
    "client, after one that has compiled. Neither proves anything."
)
_QUIET_LOAD = 1.0  # more than that per run, and other programs had a part of the machine
_QUIET_SHARE = 0.05  # of the processor time
_DIRTY = " (inside of a part the file says `-dirty`, as it was being written)"


def page(result: dict[str, Any]) -> str:
    """The results as Markdown, part by part."""
    result = deepcopy(result)  # marked below
    others = result.get("models", {})
    mark_followers(list_parts(result))
    parts = []
    for name, section in SECTIONS.items():
        parts += [section(each[name]) for each in (result, *others.values()) if name in each]
    head = (
        "nip and other projects on the same stub, games, weights and machine, in turn by rounds, "
        "each in an environment of its own (`scripts/build_peers.sh`), over HTTP, as its "
        "documentation says. `make side-by-side` measures all in about an hour; the JSON file "
        "beside this page has every figure, all ratios with intervals, all versions and the "
        "machine's load. Tinker's API by nip and by SkyRL has [a page of its "
        f"own](tinker_peers.md). {describe_commits(result)}"
    )
    front = "\n".join(table(result))
    words = (
        "Medians over rounds; within 3 % of each other, or where the ratios of serving's and "
        "training's rounds lie on either side of 1, neither is ahead, and where another one is, "
        "its name is bold. The sections below say how each was measured, and which were not. More "
        "calls in flight, other sizes and a GPU change them: this is two cores, and a model of a "
        "million parameters where no other is named."
    )
    parts = [front, _filled(words), *parts] if front else parts
    return "\n\n".join(["# Side by side", _filled(head), *parts]) + "\n"


def list_parts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """List what was measured, of all models."""
    kept = (result, *result.get("models", {}).values())
    return [each[name] for each in kept for name in SECTIONS if name in each]


def mark_followers(parts: list[dict[str, Any]]) -> None:
    """Mark the parts that began with the load which another one of the same command left.

    None is marked where one that follows no other began on a loaded machine.
    """
    by_command: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for part in parts:
        by_command.setdefault((part["command"], part["commit"]), []).append(part["machine"])
    for machines in by_command.values():
        left = {id(m): {o["load_after"] for o in machines if o is not m} for m in machines}
        firsts = [m for m in machines if m["load_before"] not in left[id(m)]]
        quiet = all(m["load_before"] <= _QUIET_LOAD for m in firsts) and firsts
        for machine in machines:
            machine["follows"] = bool(quiet) and all(machine is not first for first in firsts)


def describe_commits(result: dict[str, Any]) -> str:
    """Say of which commit the table is, and aloud where it is of several."""
    commits = {part["commit"] for part in list_parts(result)}
    if len(commits) == 1:
        dirty = "-dirty" in json.dumps(result)
        turns = any(key.startswith("by_turns") for part in list_parts(result) for key in part)
        return (
            f"All of it was measured at {commits.pop()}"
            f"{', but for tables of two commits by turns' if turns else ''}{_DIRTY * dirty}."
        )
    return (
        f"**The parts were measured at {len(commits)} different commits, which each names: no one "
        "state of the code has all these figures.**"
    )


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False)


def _made(part: dict[str, Any], timed: bool = True) -> str:
    """The command and the machine; of what is timed a warning where other programs were at work.

    A `note` that was written into the part by hand, about its commit say, comes last.
    """
    machine = part["machine"]
    text = (
        f"`{part['command']}` at {part['commit']}, {machine['cores']} cores, Python "
        f"{machine['python']}, load {machine['load_before']} before"
        f"{', left over,' if machine.get('follows') else ''} and "
        f"{machine['load_after']} after, {part['took_s']:.0f} s."
    )
    beside = machine.get("cpu", {}).get("low_priority", 0.0)
    if timed and beside > _QUIET_SHARE:
        text += (
            f" **Other programs, of low priority, had {beside:.0%} of the processor time: seconds "
            "are longer than alone, perhaps not by the same share for all.**"
        )
    elif timed and machine["load_before"] > _QUIET_LOAD and not machine.get("follows"):
        text += (
            " **The machine was loaded by other programs: seconds are longer than alone, and only "
            "ratios within the run count.**"
        )
    if "old" in part:
        text += f" **Old: {part['old']}**"
    if timed and part["small"]:
        text += " **Small sizes, which show that it works, no more.**"
    return _filled(" ".join(filter(None, [text, part.get("note")])))


def _head(title: str, part: dict[str, Any]) -> str:
    """The heading of a part, below that of the tiny model's where another one was measured."""
    return f"### {title}, {part['model']}" if _is_another(part) else f"## {title}"


def _is_another(part: dict[str, Any]) -> bool:
    return part.get("model", "tiny") != "tiny"


def _reasons(rows: dict[str, Any]) -> list[str]:
    return [
        f"- {name} is not measured throughout: {row['reason']}"
        for name, row in rows.items()
        if "reason" in row
    ]


def _versions(rows: dict[str, Any]) -> str:
    pairs = [pair for row in rows.values() for pair in row.get("versions", {}).items()]
    every = dict.fromkeys(f"{name} {v}" for name, v in pairs if name != "python")
    return _filled("Versions: " + ", ".join(every) + ".")


def _load_text(part: dict[str, Any]) -> str:
    """Describe what was asked of whom."""
    settings = part["settings"]
    size = (
        f"of {settings['words']} words and {settings['tokens']} tokens, greedy, "
        f"{settings['run_s']:g} s for each figure"
    )
    once = ", 64 in flight in one round" if "long" in settings and settings["long"] <= 64 else ""
    if _is_another(part):
        return (
            f"The same on {part['model']}, which has some hundred times the parameters: chats "
            f"{size}{once}."
        )
    return (
        "Generated tokens per second while so many requests are in flight, for the base model, for "
        "one adapter, and for several that the requests name in turn. Locust, in an environment of "
        f"its own, asks for whole chats {size}, and waits for those in flight. All serve "
        "the bundled tiny model, without its end token so that every answer has its full length, "
        f"and the same adapters of rank {settings['lora_rank']}. All servers stay up, vLLM "
        "with `--enforce-eager`, `transformers serve` with `--continuous-batching` and a cache of "
        "a tenth of the memory. llama.cpp comes as the wheel xllamacpp, with the adapters as GGUF; "
        "requests with different adapters share no batch there. SkyRL trains adapters of its own, "
        "and is asked by the Tinker SDK, with the same prompts as tokens; its engine polls for "
        "work, which takes some of the processor from all the others. vLLM runs as it comes, in "
        "bfloat16 (a processor without AVX512-BF16 or AMX has no instructions for it), and once "
        "more in the precision that nip has it serve in. Medians over the rounds. The cost of "
        "passing through alone is in [pass_through.json](pass_through.json)."
    )


def cells_of(part: dict[str, Any]) -> list[tuple[int, int]]:
    """List the adapters and requests in flight that were measured."""
    every = [(a, n) for a in part["adapters"] for n in part["in_flight"]]
    kept = {cell for row in part["rows"].values() for cell in row.get("cells", {})}
    return [(a, n) for a, n in every if f"{a} adapters, {n} in flight" in kept]


def load(part: dict[str, Any]) -> str:
    """Tokens per second under load."""
    rows = part["rows"]
    lines = [_head("Serving", part), "", _made(part), ""]
    text = _load_text(part)
    cells = cells_of(part)
    titles = [f"{a}, {n}" for a, n in cells]
    lines += [_filled(text), "", f"| adapters, in flight: | {' | '.join(titles)} |"]
    lines.append("|---" * (len(cells) + 1) + "|")
    for name, row in rows.items():
        measured = [row.get("cells", {}).get(f"{a} adapters, {n} in flight") for a, n in cells]
        if any(measured):
            figures = [
                f"{median(f['tokens_per_s'] for f in each):,.0f}" if each else ""
                for each in measured
            ]
            lines.append(f"| {name} | {' | '.join(figures)} |")
    refused = [
        f"- {n} serves no adapters: {r['refused']}" for n, r in rows.items() if r.get("refused")
    ]
    missing = [*_reasons({**rows, **part.get("absent", {})}), *refused]
    return "\n".join([*lines, "", *missing, "", _versions({"all": {"versions": part["versions"]}})])


def training(part: dict[str, Any]) -> str:
    """Tokens per second."""
    settings, rows = part["settings"], part["rows"]
    first = next(iter(rows.values()))[0]
    lines = [_head("LoRA training", part), "", _made(part), ""]
    whose = part["model"] if _is_another(part) else "the bundled tiny model"
    text = (
        f"{settings['examples']} conversations of {whose} ({first['tokens']:,} "
        f"tokens), batches of {settings['batch_size']}, LoRA of rank {settings['lora_rank']} on "
        "all linear layers, with every setting given to nip and TRL. SkyRL lacks some: it clips "
        "no gradients, and takes the mean of each answer before that of a batch. Tokens of the "
        "data over the seconds of the training, medians over the rounds after one that does not "
        "count. The whole time is from the request, or the start of the script, to the adapter: "
        "ours is loaded and proved by then, that of the others is on the disk."
    )
    lines += [_filled(text), "", "| | tokens per s | seconds of training | whole, s | rounds |"]
    lines.append("|---|---|---|---|---|")
    for name, rounds in sorted(rows.items(), key=lambda row: row[0] != "nip job"):
        speed, seconds, whole = (
            median(r[key] for r in rounds) for key in ("tokens_per_s", "train_s", "whole_s")
        )
        lines.append(f"| {name} | {speed:,.0f} | {seconds:.2f} | {whole:.2f} | {len(rounds)} |")
    lines += ["", "| nip's by those of | tokens per second | the whole time |", "|---|---|---|"]
    for name in dict.fromkeys(r["to"] for r in part["ratios"]):
        speed, whole = (
            next(r for r in part["ratios"] if r["to"] == name and r["of"] == key)
            for key in ("tokens_per_s", "whole_s")
        )
        lines.append(f"| {name} | {_span(speed)} | {_span(whole)} |")
    losses = {r["final_loss"] for name in ("nip job", "TRL") for r in rows[name]}
    apart = max(losses) / min(losses) - 1
    same = "the same to a millionth" if apart < 1e-6 else "**not** the same"
    counts = [rows[name][0]["tokens"] for name in ("nip job", "TRL")]
    more = (
        f" TRL's examples have {counts[1]:,} tokens, ours {counts[0]:,}: TRL also learns the chat "
        "template's text after the token that ends the answer, so the two losses are not of the "
        "same tokens."
        if counts[1] > counts[0]
        else ""
    )
    told = f"The loss of the last step is {same} in all rounds of nip and TRL.{more}"
    lines += ["", _filled(told), ""]
    lines += [*_reasons(part["absent"]), *([""] if part["absent"] else [])]
    return "\n".join([*lines, _versions({"all": {"versions": part["versions"]}})])


def swap(part: dict[str, Any]) -> str:
    """From trained to answered."""
    lines = [_head("From trained weights to their first answer", part), "", _made(part), ""]
    lines += [_filled(_SWAP), "", "| | median, s | each, s |", "|---|---|---|"]
    for name, seconds in part["seconds"].items():
        each = ", ".join(f"{s:.2f}" for s in seconds)
        lines.append(f"| {name} | {median(seconds):.2f} | {each} |")
    for key, how in (("by_turns", "embedded"), ("by_turns_vllm", "over vLLM")):
        if turns := part.get(key):
            lines += ["", *_by_turns(turns, how)]
    missing = _reasons(part["absent"])
    lines += ["", *missing, *([""] if missing else [])]
    return "\n".join([*lines, _versions({"all": {"versions": part["versions"]}})])


def _by_turns(turns: dict[str, Any], how: str) -> list[str]:
    """Show the seconds of two commits by turns, from `swap_by_turns.py`."""
    text = (
        f"nip, {how}, of two earlier commits by turns: `{turns['command']}` at "
        f"{turns['commit']}, load {turns['load_before']} before and {turns['load_after']} after, "
        "trainings of one epoch. Processor seconds are the server's, from the commit of the "
        "adapter to the answer."
    )
    lines = [_filled(text), "", "| | median, s | each, s | median processor s | each |"]
    lines.append("|---|---|---|---|---|")
    for name, swaps in turns["swaps"].items():
        figures = [
            f"{median(swaps[key]):.2f} | {', '.join(f'{s:.2f}' for s in swaps[key])}"
            for key in ("seconds", "processor_s")
        ]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return lines


def _span(r: dict[str, Any]) -> str:
    if r["rounds"] == 1:
        return f"{r['ratio']:.2f} (one round)"
    return f"{r['ratio']:.2f} [{r['low']:.2f}, {r['high']:.2f}]"


def kills(part: dict[str, Any]) -> str:
    """The price of a kill."""
    lines = ["## The price of a kill", "", _made(part), ""]
    text = (
        f"{part['games']} games of {part['turns']} turns, {part['in_flight']} calls in flight, a "
        f"stub that answers after {part['latency_s']:g} s. When a share of the calls has been "
        "answered the process and its children are killed with SIGKILL; then it is started again "
        "as its documentation says: `nip play` again, `vf-eval --resume`, `inspect eval-retry`, "
        "the same program of DBOS. The stub counts calls made again. Unanswered are those that it "
        "had not answered at the kill. An answer that was sent but not yet read or on the disk is "
        f"lost, too, so a program that keeps every answer loses at most {part['in_flight']}. The "
        "time is from the second start to the first answer that the killed process did not have. "
        f"Calls a second are those until the kill; with {part['in_flight']} in flight they can't "
        f"be more than {part['in_flight'] / part['latency_s']:.0f}. The files are all those left "
        "in the end, without printed output; of PostgreSQL all of its data, of which an empty one "
        "has some 40 MB. Medians over the rounds."
    )
    lines += [_filled(text), ""]
    lines += [
        "| | killed at | unanswered then | calls made again | beyond what may be in flight | "
    ]
    lines[-1] += "s to the next new answer | calls a second | MB of files | rounds |"
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for name, row in part["players"].items():
        for share in part["shares"]:
            rounds = row.get(f"{share:g}")
            if not rounds:
                continue
            in_flight, repeated, seconds, beyond = (
                median(figures)
                for figures in (
                    [r["in_flight"] for r in rounds],
                    [r["repeated"] for r in rounds],
                    [r["seconds_to_new_answer"] for r in rounds],
                    [max(0, r["repeated"] - part["in_flight"]) for r in rounds],
                )
            )
            # Rounds on record from before these were measured have neither.
            rates = [r["calls_per_s"] for r in rounds if "calls_per_s" in r]
            sizes = [r["bytes"] / 1e6 for r in rounds if "bytes" in r]
            lines.append(
                f"| {name} | {share:.0%} | {in_flight:g} | {repeated:g} | {beyond:g} | "
                f"{seconds:.1f} | {f'{median(rates):.0f}' if rates else ''} | "
                f"{f'{median(sizes):.1f}' if sizes else ''} | {len(rounds)} |"
            )
    missing = _reasons({**part["players"], **part["absent"]})
    return "\n".join([*lines, "", *missing, "", _versions(part["players"])])


def weights(part: dict[str, Any]) -> str:
    """Wrong weights."""
    title = "Wrong weights under the right name"
    lines = [_head(title, part), "", _made(part, timed=False), ""]
    text = (
        f'Adapters of the tiny model, taught to say "{part["taught"]}", are made wrong on the '
        f'disk: *swapped*, the weights are those of one taught "{part["other"]}"; *truncated*, '
        "half of the file; *base*, weights that change nothing; *directory*, the whole directory "
        "of the other one in its place. Each is then asked for by its name. nip is started again "
        "on its state directory; vLLM is told by `/v1/load_lora_adapter` to load them; PEFT loads "
        "them in a process. SkyRL takes no adapter but its own, an archive of such a "
        "directory: it trains the same, and its archives are made wrong in the same ways before "
        "they are first asked for. A refusal counts as noticed, whatever its words. The files are "
        "wrong before they are read, and nip refuses them by their checksums; its proof of the "
        "served weights comes after that."
    )
    if _is_another(part):
        text = f"The same with adapters of {part['model']}."
    lines += [_filled(text), "", f"| | {' | '.join(CASES)} | noticed | the control answers |"]
    lines.append("|---|" + "---|" * (len(CASES) + 2))
    for name, row in part["rows"].items():
        if "reason" in row:
            continue
        cells = [_outcome(row["cases"][case]) for case in CASES]
        control = "yes" if row["control_answers"] else "**no**"
        lines.append(
            f"| {name} | {' | '.join(cells)} | {row['noticed']} of {row['of']} | {control} |"
        )
    versions = _versions({"all": {"versions": part["versions"]}})
    return "\n".join([*lines, "", *_reasons(part["rows"]), "", versions])


def _outcome(outcome: dict[str, Any]) -> str:
    if outcome["noticed"]:
        return "refused"
    answer = " ".join(outcome["answer"].replace("|", " ").split())[:24]
    return f'answers "{answer}"'


def _mb(rounds: list[dict[str, Any]]) -> str:
    """The memory of rounds; older ones have none."""
    peaks = [r["peak_mb"] for r in rounds if "peak_mb" in r]
    return f"{median(peaks):,.0f}" if peaks else ""


def schedule(part: dict[str, Any]) -> str:
    """Ideal by real time."""
    places = part["in_flight"][0]
    few = part.get("few", part["games"])
    more = (
        f" ({part['games']:,} from {part['in_flight'][1]:,} in flight on)" if "few" in part else ""
    )
    most = few / (places * ceil(few / places))
    lines = ["## Schedule", "", _made(part), ""]
    text = (
        f"{few:,} games of {part['turns']} turns{more} on a stub that answers after "
        f"{part['latency_s']:g} s. Ideal is calls times latency over calls in flight; real is the "
        "time from the first call to the last answer, by the stub, so that starts do not count. "
        f"A program that plays {places} games at a time reaches {most:.3f} at most; nip has twice "
        "as many games under way as calls in flight. The bare client is nip's, with nothing around "
        "it. Memory is the most of all processes of a player together, shared pages counted for "
        "each. Medians over the rounds. verifiers plays with a harness in the process of the "
        "evaluation, where its own harness for chats, `null`, starts a process for every turn."
    )
    lines += [_filled(text), "", "| | in flight | ideal / real | calls per s | MB | rounds |"]
    lines.append("|---|---|---|---|---|---|")
    for name, row in part["players"].items():
        for in_flight in part["in_flight"]:
            rounds = row.get(str(in_flight))
            if rounds:
                share = median(r["ideal_by_real"] for r in rounds)
                speed = median(r["calls_per_s"] for r in rounds)
                lines.append(
                    f"| {name} | {in_flight:,} | {share:.3f} | {speed:,.0f} | {_mb(rounds)} | "
                    f"{len(rounds)} |"
                )
    missing = _reasons({**part["players"], **part["absent"]})
    return "\n".join([*lines, "", *missing, "", _versions(part["players"])])


def _describe_bar(bar: dict[str, Any], words: str) -> str:
    return f"Our bar, {words}, is {'met' if bar['met'] else '**missed**'}."


def resume(part: dict[str, Any]) -> str:
    """Show that a long run goes on."""
    figures = part["resume"]
    text = (
        f"`nip train` was killed with SIGKILL with {figures['finished_rollouts']:,} rollouts done, "
        "and started again: seconds from its start to the first new answer, and calls that were "
        "made again, of which up to 64 were in flight; answers that were not yet on the disk are "
        f"asked for again, too. {_describe_bar(figures['bar'], '10 s and 64 calls')}"
    )
    lines = ["## A long run goes on", "", _made(part), "", _filled(text), ""]
    lines += ["| rollouts done | s to the next new answer | calls made again |", "|---|---|---|"]
    done, again = figures["finished_rollouts"], figures["repeated"]
    lines.append(f"| {done:,} | {figures['seconds_to_first_new_answer']:.1f} | {again} |")
    return "\n".join(lines)


def growth(part: dict[str, Any]) -> str:
    """Show training data, memory and disk."""
    text = (
        "Rollouts of nine rounds, made up, become training data; half of them are chosen, or all. "
        "pyarrow reads the same files and writes the same examples, and chooses and renders "
        "nothing. Then all stages after play on a run of growing size, each in a process: the most "
        "memory of a process, seconds of a processor. "
        f"{_describe_bar(part['dataset']['bar'], '3 times pyarrow and 1 GB, for training data')}"
    )
    lines = ["## Growth", "", _made(part), "", _filled(text), ""]
    lines += ["| chosen of | nip, s | pyarrow, s | nip, most MB |", "|---|---|---|---|"]
    lines += [
        f"| {case['case']} of {case['rollouts']:,} | {case['nip_seconds']:.1f} | "
        f"{case['pyarrow_seconds']:.1f} | {case['peak_rss_mb']:,.0f} |"
        for case in part["dataset"]["cases"]
    ]
    sizes = part["scale"]["sizes"]
    steps = list(sizes[0]["steps"])
    lines += ["", f"| episodes | bytes of each | {' | '.join(f'{s}: MB, s' for s in steps)} |"]
    lines.append("|---" * (2 + len(steps)) + "|")
    for size in sizes:
        cells = [
            f"{step['peak_mb']:,.0f}, {step['cpu_seconds']:.0f}" for step in size["steps"].values()
        ]
        bytes_ = 1e6 * size["disk_mb"] / size["episodes"]
        lines.append(f"| {size['episodes']:,} | {bytes_:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def viewer(part: dict[str, Any]) -> str:
    """Show how quick the viewer is."""
    view = part["view"]
    text = f"`nip view` on {view['episodes']:,} episodes; the slowest of all filters and searches."
    lines = ["## Viewer", "", _made(part), "", _filled(text), ""]
    lines += ["| first page, s | a filter, s | a search, s | most MB |", "|---|---|---|---|"]
    filters = max(f["slowest_s"] for f in view["filters"].values())
    searches = max(s["first_s"] for s in view["searches"].values())
    lines.append(
        f"| {view['first_page_s']:.2f} | {filters:.2f} | {searches:.2f} | "
        f"{view['peak_memory_mb']:,} |"
    )
    return "\n".join(lines)


def starts(part: dict[str, Any]) -> str:
    """Show how long a command takes to begin."""
    text = (
        "From the start of the process to the first call that reaches the stub, or to the end of a "
        "command that prints, `nip ls` of an empty store. nip is `nip play`. One round in front "
        "does not count."
    )
    lines = ["## Start", "", _made(part), "", _filled(text), ""]
    lines += ["| | median, s | each, s |", "|---|---|---|"]
    for name, row in part["players"].items():
        if seconds := row.get("seconds"):
            each = ", ".join(f"{s:.2f}" for s in seconds)
            title = f"`{name}`" if row.get("prints") else name
            lines.append(f"| {title} | {median(seconds):.2f} | {each} |")
    return "\n".join([*lines, "", *_reasons(part["players"]), "", _versions(part["players"])])


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "a": load,
    "b": training,
    "c": swap,
    "d": schedule,
    "e": kills,
    "f": weights,
    "g": resume,
    "h": growth,
    "i": viewer,
    "j": starts,
}
