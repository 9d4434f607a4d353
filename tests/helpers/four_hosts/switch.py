"""The network between hosts, as a process: frames that take their time, get lost, or find no cable.

It has an end of a tap device in each host's network namespace and carries frames from one to the
other. The kernel's own netem would do as well, but many kernels are built without it. It is told
what to do by lines of JSON, and answers each with a line:

    {"do": "attach", "name": "a", "pid": 1234, "address": "10.77.0.1/24"}
    {"do": "detach" | "cut" | "mend", "name": "a"}
    {"do": "delay", "latency_s": 0.001, "loss": 0.001}

All devices are gone when it ends, which it does with its standard input.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from typing import Any

DEVICE = "lan0"
MTU = 9000
_TUNSETIFF, _TAP, _NO_INFO = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_MOST_BYTES = MTU + 64


class Switch:
    """Cables by host, and the frames that are under way."""

    def __init__(self) -> None:
        self.latency_s, self.loss = 0.0, 0.0
        self._taps: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._cut: set[str] = set()
        self._learnt: dict[bytes, str] = {}
        self._under_way: list[tuple[float, int, str, bytes]] = []
        self._count = 0
        self._draw = random.Random(0)

    def attach(self, name: str, pid: int, address: str) -> None:
        """Give a host its device, with this address."""
        self.detach(name)
        tap = _open_tap(pid, address)
        self._taps[name], self._names[tap] = tap, name

    def detach(self, name: str) -> None:
        """Forget a host, whose device goes."""
        if (tap := self._taps.pop(name, None)) is not None:
            del self._names[tap]
            os.close(tap)

    def do(self, order: dict[str, Any]) -> None:
        """Follow an order. Raises whatever an order that can't be followed raises."""
        match order.pop("do"):
            case "attach":
                self.attach(**order)
            case "detach":
                self.detach(**order)
            case "cut":
                self._cut.add(order["name"])
            case "mend":
                self._cut.discard(order["name"])
            case "delay":
                self.latency_s, self.loss = order["latency_s"], order["loss"]

    def carry(self, wait_s: float) -> bool:
        """Take what comes within `wait_s`, deliver what is due; True: there is an order."""
        now = time.monotonic()
        if self._under_way:
            wait_s = min(wait_s, max(0.0, self._under_way[0][0] - now))
        ready, _, _ = select.select([0, *self._names], [], [], wait_s)
        for tap in ready:
            if tap != 0:
                self._take(tap)
        self._deliver(time.monotonic())
        return 0 in ready

    def _take(self, tap: int) -> None:
        source = self._names[tap]
        for _ in range(64):
            try:
                frame = os.read(tap, _MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:  # its host is gone
                self.detach(source)
                return
            if source in self._cut:
                continue
            target, self._learnt[frame[6:12]] = self._learnt.get(frame[:6]), source
            for name in [target] if target else [n for n in self._taps if n != source]:
                if self.loss and self._draw.random() < self.loss:
                    continue
                self._count += 1
                due_s = time.monotonic() + self.latency_s
                heapq.heappush(self._under_way, (due_s, self._count, name, frame))

    def _deliver(self, now_s: float) -> None:
        while self._under_way and self._under_way[0][0] <= now_s:
            _, _, name, frame = heapq.heappop(self._under_way)
            tap = self._taps.get(name)
            if tap is None or name in self._cut:
                continue
            try:
                os.write(tap, frame)
            except OSError:  # a full queue loses frames, as networks do
                continue


def _open_tap(pid: int, address: str) -> int:
    """Make the device in the network namespace of `pid`; the end here."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {pid}")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH14x", DEVICE.encode(), _TAP | _NO_INFO))
        for command in (
            f"addr add {address} dev {DEVICE}",
            f"link set {DEVICE} mtu {MTU} txqueuelen 10000 up",
        ):
            subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)
        return tap
    finally:
        libc.setns(here, _CLONE_NEWNET)
        os.close(here)
        os.close(there)


def main() -> None:
    """Carry frames until standard input closes."""
    switch, begun = Switch(), b""
    while True:
        if not switch.carry(wait_s=1.0):
            continue
        if not (said := os.read(0, 65536)):
            return
        *lines, begun = (begun + said).split(b"\n")
        for line in lines:
            try:
                switch.do(json.loads(line))
                answer: dict[str, str] = {}
            except (OSError, subprocess.CalledProcessError, ValueError) as error:
                answer = {"error": f"{error} {getattr(error, 'stderr', '') or ''}".strip()}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
