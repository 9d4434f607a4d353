"""Facts of the machine: what is there, what works, and the ceilings that figures are read against.

facts       processors, memory, the GPU by nvidia-smi, versions
doctor      what `nip doctor` says
toolchain   a Triton kernel is compiled and run; virtual memory on the card, which sleep mode needs
ceilings    the card's memory and matrix products, as torch gets them
"""

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil
from beside.runs import Failed

from gpu_pieces import models
from gpu_pieces.results import Piece, Row
from gpu_pieces.serving import find_vllm
from gpu_pieces.sizes import Session

PACKAGES = ("torch", "triton", "transformers", "trl", "peft", "accelerate", "bitsandbytes")
SMI = "name,driver_version,memory.total,memory.used,power.limit,compute_cap"
SMOKE_S = 180.0

TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, out, n, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

x = torch.arange(1000, device="cuda", dtype=torch.float32)
out = torch.empty_like(x)
double[(4,)](x, out, 1000, size=256)
assert torch.equal(out, 2 * x), out
"""
# torch takes the card's virtual memory for this, as vLLM's allocator does.
VIRTUAL_MEMORY = """
import torch
torch.ones(2**28, device="cuda").sum().item()
assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
"""
CEILINGS = """
import json, torch

def seconds(work, times=10):
    for _ in range(3): work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times): work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / times

a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
x = torch.randn(2**30, device="cuda")
y = torch.empty_like(x)
print(json.dumps({
    "bf16_product_tflop_per_s": round(2 * 8192**3 / seconds(lambda: a @ b) / 1e12, 1),
    "copy_tb_per_s": round(2 * x.nbytes / seconds(lambda: y.copy_(x)) / 1e12, 3),
    "free_gb": round(torch.cuda.mem_get_info()[0] / 1e9, 2),
}))
"""


def facts() -> Row:
    """The machine and the versions of what takes part."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "disk_free_gb": round(shutil.disk_usage(".").free / 1e9, 1),
        "gpu": gpu(),
        "versions": versions,
        "vllm": find_vllm(rehearsal=True)[1],
    }


def gpu() -> list[dict[str, str]]:
    """The GPUs, as nvidia-smi tells of them; none without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    text = models.run(["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"], 60)
    names = SMI.split(",")
    return [
        dict(zip(names, map(str.strip, line.split(",")), strict=True)) for line in text.splitlines()
    ]


def doctor() -> Row:
    """Every line of `nip doctor`. Raises Failed where it can't be imported."""
    try:
        from nip_up.doctor_checks import examine, summary
    except ImportError as error:
        raise Failed(f"nip's command is not installed here: {error}") from None
    findings = examine()
    return {
        "summary": summary(findings),
        "findings": {f.what: ("ok: " if f.ok else "NO: ") + f.detail for f in findings},
    }


def _python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=SMOKE_S,
        env={**os.environ, **environment},
        check=False,
    )
    if done.returncode != 0:
        raise Failed(" ".join(done.stderr[-800:].split()))
    return done.stdout


def _triton() -> Row:
    # The kernel has to stand in a file, which Triton reads.
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(TRITON)
        file.flush()
        models.run([sys.executable, file.name], SMOKE_S)
    return {"works": True}


def _virtual_memory() -> Row:
    _python(VIRTUAL_MEMORY, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    return {"works": True}


def _ceilings() -> Row:
    import json

    ceilings: dict[str, Any] = json.loads(_python(CEILINGS))
    return ceilings


def measure(session: Session, piece: Piece) -> None:
    """All of it."""
    piece.row("facts", facts)
    piece.row("doctor", doctor)
    if session.rehearsal:
        piece.without("needs a GPU", "triton", "virtual memory", "ceilings")
    piece.row("triton", _triton)
    piece.row("virtual memory", _virtual_memory)
    piece.row("ceilings", _ceilings)
    piece.finish()
