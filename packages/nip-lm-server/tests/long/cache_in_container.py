"""Chats of an embedded engine whose process has little memory: does it live, and what does it keep?

    python packages/nip-lm-server/tests/long/cache_in_container.py --limit-gb 1.3 --chats 2000

A child enters a control group of its own with this limit (as root, or where groups are
delegated), loads the bundled tiny model and asks for answers to chats that have only their
beginning in common. It prints one line of JSON: how many were answered, the most memory that the
group had, the bytes kept at the end. One that is killed prints none, and this ends with 137.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
WORDS = ("check", "the", "sum", "of", "each", "row", "and", "say", "where", "a", "claim", "is")


def make_group(limit: int) -> Path:
    """Make a control group with a limit. Raises OSError."""
    is_one = (GROUPS / "memory/memory.limit_in_bytes").exists()
    group = GROUPS / ("memory" if is_one else "") / f"nip-cache-{os.getpid()}"
    group.mkdir()
    try:
        limits = ("memory.limit_in_bytes",) if is_one else ("memory.max", "memory.swap.max")
        (group / limits[0]).write_text(str(limit))
        for name in limits[1:]:
            with contextlib.suppress(OSError):
                (group / name).write_text("0")
    except OSError:
        group.rmdir()
        raise
    return group


def read_peak(group: Path) -> int | None:
    """Read the most memory that the group ever had; None where the kernel does not tell."""
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int((group / name).read_text())
    return None


async def ask_all(chats: int, tokens: int, cache_bytes: int | None) -> tuple[int, int]:
    """Ask for so many answers, 64 at a time; return the answers and the bytes that are kept."""
    from nip_lm_server.bundled import TINY
    from nip_lm_server.engines.base import GenerationRequest
    from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

    model = TINY
    engine = EmbeddedEngine(str(model), threads=1, cache_bytes=cache_bytes)
    await engine.start()
    answered = 0

    async def one(number: int) -> None:
        nonlocal answered
        words = " ".join(WORDS[(number * (i + 3) + i) % len(WORDS)] for i in range(tokens))
        message = {"role": "user", "content": f"Is chat {number} right? {number * 7919} {words}"}
        request = GenerationRequest(
            model="tiny", messages=(message,), max_tokens=2, n=1, seed=number, temperature=1.0
        )
        result = await engine.generate(request)
        answered += len(result.choices)

    for start in range(0, chats, 64):
        await asyncio.gather(*map(one, range(start, min(chats, start + 64))))
    kept = engine._worker.decoder.kept.bytes
    await engine.stop()
    return answered, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limit-gb", type=float, default=1.3)
    parser.add_argument("--chats", type=int, default=2000)
    parser.add_argument("--words", type=int, default=250)
    parser.add_argument("--cache-bytes", type=int)
    options = parser.parse_args()
    group, began = make_group(int(options.limit_gb * 1e9)), time.monotonic()
    if child := os.fork():
        status = os.waitpid(child, 0)[1]
        group.rmdir()
        code = os.waitstatus_to_exitcode(status)
        sys.exit(128 - code if code < 0 else code)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    answered, kept = asyncio.run(ask_all(options.chats, options.words, options.cache_bytes))
    facts = {"answered": answered, "kept_bytes": kept, "peak_bytes": read_peak(group)}
    print(json.dumps({**facts, "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
