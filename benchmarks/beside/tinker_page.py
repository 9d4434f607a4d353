"""The page of docs/results that says what tinker_peers measured."""

from statistics import median
from typing import Any

QUIET_LOAD = 1.0
NIP, SKYRL = "nip", "SkyRL"
SDK, SDK_NOW = {"0.3.0": "speaks the JSON of older ones"}, "asks for that one"
LORA = {
    "0.3.0": "with tied embeddings it trains LoRA on the embedding, where nip does on the output "
    "layer",
}
LORA_NOW = (
    "it trains no LoRA on the embedding or the output layer, where nip does on the latter, as "
    "Tinker's requests ask for"
)


def page(result: dict[str, Any]) -> str:
    """Write the results as Markdown."""
    parts = [
        f"# Tinker's API, nip and SkyRL{_version(result)}",
        "Two servers of Tinker's API that train without a GPU (open-rl has a CPU mode, too, which "
        "was not run), on the same weights (the bundled tiny model, float32), LoRA of rank 32, "
        "asked by the same client, each with an SDK "
        "that it speaks. Made by `benchmarks/tinker_peers.py`; the JSON file beside this page has "
        "every round. Processor seconds are those of the server for each step, sample or "
        "swap; the first is what the request took that doesn't count, with what JAX compiles.",
    ]
    if "rates" in result:
        parts += describe_rates(result["rates"])
    if "faults" in result:
        parts += describe_faults(result["faults"])
    if "bare" in result:
        parts += describe_bare(result["bare"])
    return "\n\n".join(parts) + "\n"


def describe_rates(part: dict[str, Any]) -> list[str]:
    """Say what both compute, and how fast."""
    compared, sdk = part["compared"], part["sdk"]
    made = compared["made_s"]
    same = (
        f"Before a step the log-probabilities of a batch of 8 differ by at most "
        f"{compared['batch_logprobs_differ_by']:g} (mean negative log-likelihood "
        f"{' and '.join(f'{value:.4f}' for value in compared['mean_nll'])}), those of a greedy "
        f"sample of 32 tokens by {compared['greedy_logprobs_differ_by']:g}; its tokens are "
        f"{'the same' if compared['greedy_tokens_equal'] else '**not** the same'}"
    )
    if "prompt_logprobs_differ_by" in compared:
        same += f"; those of a prompt differ by {compared['prompt_logprobs_differ_by']:g}"
    version = part["versions"]["skyrl"]
    return [
        _made(part),
        f"{same}. The first adapter was there {made[NIP]:g} s (nip) and {made[SKYRL]:g} s (SkyRL) "
        f"after the server answered. SDK {sdk[NIP]} asks nip, {sdk[SKYRL]} SkyRL, which "
        f"{SDK.get(version, SDK_NOW)}. By its source, SkyRL takes the mean of each sequence and of "
        f"the batch where Tinker's loss is a sum, and {LORA.get(version, LORA_NOW)}, so the losses "
        "of later steps differ.",
        f"## Training steps per second, SkyRL {version}",
        "`forward_backward` and `optim_step` sent together, then both awaited; sequences of three "
        "quarters of the length up to all of it.",
        _table(part["training"]),
        f"## Samples per second, SkyRL {version}",
        "Every sample has `max_tokens` tokens. SkyRL samples one sequence at a time where one is "
        "asked for, and else pads to 16, so that it compiles each size once.",
        _table(part["sampling"]),
        f"## From trained weights to their first sample, SkyRL {version}",
        "`save_weights_and_get_sampling_client` and 8 tokens, as swaps per second.",
        _table(part["swap"]),
    ]


def describe_faults(part: dict[str, Any]) -> list[str]:
    """Say what was seen when something went wrong."""
    lines = ["| | nip | SkyRL |", "|---|---|---|"]
    cells = {name: _faults(part[name]) for name in (NIP, SKYRL)}
    for row in cells[NIP]:
        lines.append(f"| {row} | {cells[NIP][row]} | {cells[SKYRL].get(row, '')} |")
    return [
        f"## When something goes wrong, SkyRL {part['versions']['skyrl']}",
        _made(part),
        "Seen once each, in training on one batch of 8 × 64.",
        "\n".join(lines),
    ]


def describe_bare(part: dict[str, Any]) -> list[str]:
    """Say what a step takes beside a loop of torch and PEFT."""
    versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
    lines = [
        "| nip | server and trainer, ms | client, ms | bare loop, ms | server / bare | by round | "
        "with the client |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in part["rows"].items():
        server, client, bare = (row[key] for key in ("server_ms", "client_ms", "bare_ms"))
        alone = [a / c for a, c in zip(server, bare, strict=True)]
        both = [(a + b) / c for a, b, c in zip(server, client, bare, strict=True)]
        cells = [f"{median(values):.1f}" for values in (server, client, bare)]
        cells += [f"**{median(alone):.2f}**", ", ".join(f"{value:.2f}" for value in alone)]
        lines.append(f"| {name} | {' | '.join(cells)} | {median(both):.2f} |")
    return [
        "## Beside a bare loop of torch and PEFT",
        _made(part),
        "Processor milliseconds of a training step (`forward_backward`, `optim_step`) on a batch "
        f"of 8 × 64 by the SDK {part['sdk']}, and of a step of the loop in "
        "`benchmarks/beside/peers/bare_peft.py`: the same model, batch, rank and layers, float32, "
        f"one thread ({versions}).",
        "\n".join(lines),
    ]


def _faults(seen: dict[str, Any]) -> dict[str, str]:
    killed, doubled = seen["killed"], seen["doubled"]
    rows = {}
    if killed["client"] == "ends":
        end = f"the client ends {killed['after_s']:g} s after the kill"
        end += f"; its losses differ by {killed['losses_differ_by']:g} from those without a kill"
    else:
        end = f"the client fails after {killed['after_s']:g} s: `{killed['client'][:160]}`"
    rows["killed by SIGKILL in training, started again"] = end
    if "losses" in doubled:
        once, twice = doubled["losses"]
        same = once == twice
        shown = ", ".join(f"{value:.4f}" for value in twice)
        told = ", ".join(f"{value:.4f}" for value in once)
        rows["each gradient and step sent twice"] = (
            "the same losses as sent once" if same else f"losses {shown}; sent once {told}"
        )
    else:
        rows["each gradient and step sent twice"] = f"`{doubled['refused'][:160]}`"
    if "altered" in seen:
        rows["each step sent again with another learning rate"] = _altered(seen["altered"], doubled)
    for loss, what in seen["lacking"].items():
        rows[f"`{loss}`"] = what if what == "trains" else f"`{what[:110]}`"
    return rows


def _altered(altered: dict[str, Any], doubled: dict[str, Any]) -> str:
    if "losses" not in altered:
        return f"`{altered['failed'][:160]}`"
    refusal = altered["first_refusal"]
    text = ", ".join(map(str, altered["second_answers"]))
    text += f": `{refusal[:160]}`" if refusal else ""
    if "losses" in doubled:
        once, also = doubled["losses"][0], altered["losses"]
        apart = max(abs(a - b) for a, b in zip(once, also, strict=True))
        text += f"; its losses differ by at most {apart:.1g} from those of steps sent once"
    return text


def _version(result: dict[str, Any]) -> str:
    """Name SkyRL's version, as the parts have it."""
    named = sorted({p["versions"]["skyrl"] for p in result.values() if "skyrl" in p["versions"]})
    return f" {' and '.join(named)}" if named else ""


def _dated(part: dict[str, Any]) -> str:
    return f" on {part['date']}" if "date" in part else ""


def _made(part: dict[str, Any]) -> str:
    machine, versions = part["machine"], part["versions"]
    text = (
        f"`{part['command']}` at {part['commit']}{_dated(part)}, {machine['cores']} cores, Python "
        f"{machine['python']}, load {machine['load_before']} before and {machine['load_after']} "
        f"after, {part['took_s']:.0f} s"
    )
    if "skyrl" in versions:
        text += f"; skyrl {versions['skyrl']} on Python {versions['python']}, jax {versions['jax']}"
    text += "."
    if machine["load_before"] > QUIET_LOAD:
        text += (
            " **Other programs had a part of the machine: rates are lower than they would be "
            "alone, and only ratios within the run say something.**"
        )
    if "old" in part:
        text += f" **Old: {part['old']}**"
    return text


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | nip | SkyRL | nip / SkyRL | by round | processor s each | first, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours, theirs = (row["rates"].get(name, []) for name in (NIP, SKYRL))
        cells = [f"{median(rates):.3g}" if rates else "absent" for rates in (ours, theirs)]
        ratios = [a / b for a, b in zip(ours, theirs, strict=False)]
        cells.append(f"**{median(ratios):.2f}**" if ratios else "")
        cells.append(", ".join(f"{value:.2f}" for value in ratios))
        taken = [row["processor_s"].get(name, []) for name in (NIP, SKYRL)]
        cells.append(" and ".join(f"{median(each):.3g}" for each in taken if each))
        cells.append(" and ".join(f"{row['first_s'].get(name, 0):g}" for name in (NIP, SKYRL)))
        lines.append(f"| {row['what']} | {' | '.join(cells)} |")
    absent = [
        f"- {row['what']}, {name}: {reason}"
        for row in rows
        for name, reason in row["absent"].items()
    ]
    return "\n".join(lines) + ("\n\n" + "\n".join(absent) if absent else "")
