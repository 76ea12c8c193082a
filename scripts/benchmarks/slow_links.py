"""Ranks behind real slow links, for the benchmarks that need them.

Each rank runs in a network namespace of its own (root), joined to a bridge by a veth pair that a token bucket filter
limits in both directions. Namespaces and links are removed at the end, whatever happens.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

INTERFACE = "eth0"


def found_by_ranks(script: str, ranks: int, rate: str | None, arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON that rank 0 of `script --as-rank *arguments` prints last.

    Every rank is a process of its own behind a link of `rate`, as tc spells it (None: loopback, without root)."""
    with ExitStack() as stack:
        machines = lay_links(stack, ranks, rate) if rate else [None] * ranks
        processes = []
        for rank, machine in enumerate(machines):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "10.99.0.1" if machine else "127.0.0.1",
                "MASTER_PORT": str(29000 + os.getpid() % 1000),
                "GLOO_SOCKET_IFNAME": INTERFACE if machine else "lo",
                "OMP_NUM_THREADS": "1",
            }
            inside = ["ip", "netns", "exec", machine] if machine else []
            process = subprocess.Popen(
                [*inside, sys.executable, script, "--as-rank", *arguments],
                env=environment,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        output, _ = processes[0].communicate()
        if processes[0].returncode:
            raise SystemExit(f"a rank failed with exit code {processes[0].returncode}")
        return json.loads(output.splitlines()[-1])


def lay_links(stack: ExitStack, ranks: int, rate: str) -> list[str]:
    """Namespaces of `ranks` machines on one switch, linked to it at the given rate. Returns their names."""
    prefix = f"bw{os.getpid() % 100000}"
    switch, machines = f"{prefix}sw", [f"{prefix}n{r}" for r in range(ranks)]
    for name in [switch, *machines]:
        run(f"ip netns add {name}")
        stack.callback(run, f"ip netns del {name}")
        run(f"ip -n {name} link set lo up")
    run(f"ip -n {switch} link add bridge type bridge")
    run(f"ip -n {switch} link set bridge up")
    for r, machine in enumerate(machines):
        run(f"ip link add port{r} netns {switch} type veth peer name {INTERFACE} netns {machine}")
        run(f"ip -n {switch} link set port{r} master bridge up")
        run(f"ip -n {machine} addr add 10.99.0.{r + 1}/24 dev {INTERFACE}")
        run(f"ip -n {machine} link set {INTERFACE} up")
        for namespace, device in ((switch, f"port{r}"), (machine, INTERFACE)):
            run(f"tc -n {namespace} qdisc add dev {device} root tbf rate {rate} burst 256kb latency 50ms")
    return machines


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def sent_bytes() -> int:
    """As the kernel counted them on this rank's interface."""
    name = os.environ["GLOO_SOCKET_IFNAME"]
    return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text())
