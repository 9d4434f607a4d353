"""Peak memory of a policy gradient step at a large vocabulary: scored in pieces, and by all logits.

    python benchmarks/head_memory.py [--vocabulary N] [--tokens N] [--batch N] [--out FILE]

One forward and backward pass of the clipped loss over random tokens, half of them actions, through
a small model of random weights with LoRA, each way in a process of its own. The peak is what the
process (on CUDA: torch's allocator) needs at most, less what it held before the pass; a small pass
of the same kind comes first, so that libraries have what they allocate once. Also the loss and the
norm of the gradient, which must agree, and the seconds of the pass. Nothing is downloaded.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from measured_commit import describe_commit

WAYS = ("logits", "pieces")
GB = 1e9


class Peak:
    """The most memory that this process holds within, above what it held before."""

    bytes = 0

    def __enter__(self) -> "Peak":
        import torch

        self._cuda = torch.cuda.is_available()
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            return self
        self._before = self._most = _resident()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.002):
            self._most = max(self._most, _resident())

    def __exit__(self, *_: object) -> None:
        import torch

        if self._cuda:
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated() - self._before
            return
        self._over.set()
        self._watch.join()
        self.bytes = self._most - self._before


def _resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(way: str, vocabulary: int, tokens: int, batch: int) -> dict[str, Any]:
    """One step in this process: `way` is one of `WAYS`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from nip_lm_server.training.methods.head import add_scoring
    from nip_lm_server.training.methods.policy_gradient import clipped_loss, token_logprobs

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=max(4096, tokens),
    )
    model = get_peft_model(
        LlamaForCausalLM(config).to(device),
        LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    if way == "pieces":
        add_scoring(model.get_base_model())
    model.train()

    def step(length: int) -> float:
        ids = torch.randint(0, vocabulary, (batch, length), device=device)
        mask = torch.rand(ids.shape, device=device) < 0.5
        mask[:, 0] = False
        if way == "pieces":
            scores = model(input_ids=ids, scored=mask, use_cache=False)
        else:
            scores = token_logprobs(model(input_ids=ids, use_cache=False).logits, ids, mask)
        loss, _ = clipped_loss(
            scores,
            scores.detach() + 0.1,
            torch.linspace(-1, 1, batch, device=device),
            mask,
            clip_low=0.2,
            clip_high=0.2,
        )
        loss.backward()
        return float(loss.item())

    step(8)
    model.zero_grad()
    torch.manual_seed(1)
    begin = time.perf_counter()
    with Peak() as peak:
        loss = step(tokens)
    gradient = sum(
        float(p.grad.double().pow(2).sum()) for p in model.parameters() if p.grad is not None
    )
    return {
        "way": way,
        "device": torch.cuda.get_device_name()
        if device == "cuda"
        else platform.processor() or "cpu",
        "torch": torch.__version__,
        "peak_bytes": peak.bytes,
        "seconds": round(time.perf_counter() - begin, 3),
        "loss": loss,
        "gradient_norm": gradient**0.5,
    }


def main() -> None:
    """Measure both ways and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of each sequence")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help="measure this one in this process, print JSON")
    parser.add_argument("--out", type=Path, help="write the figures here too")
    options = parser.parse_args()
    sizes = (options.vocabulary, options.tokens, options.batch)
    if options.way:
        print(json.dumps(measure(options.way, *sizes)))
        return
    rows = []
    for way in WAYS:
        arguments = [f"--{n}={getattr(options, n)}" for n in ("vocabulary", "tokens", "batch")]
        done = subprocess.run(
            [sys.executable, __file__, "--way", way, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    logits = options.vocabulary * options.tokens * options.batch * 4
    print(f"all logits in float32: {logits / GB:.2f} GB")
    print(f"{'':8} {'peak GB':>8} {'seconds':>8} {'loss':>12} {'gradient':>12}")
    for row in rows:
        print(
            f"{row['way']:8} {row['peak_bytes'] / GB:>8.2f} {row['seconds']:>8} "
            f"{row['loss']:>12.7f} {row['gradient_norm']:>12.7f}"
        )
    if options.out:
        facts = {
            **{"vocabulary": options.vocabulary, "tokens": options.tokens, "batch": options.batch},
            **{"commit": describe_commit(), "rows": rows},
        }
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
