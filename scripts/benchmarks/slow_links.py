"""Functions that run the ranks of a benchmark behind real slow links.

Each rank runs in its own network namespace, which requires root. A veth pair connects it to a bridge, and a token
bucket filter limits the rate in both directions. Namespaces and links are removed at the end, even after an error.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

INTERFACE = "eth0"
LOOPBACK = "loopback"


def add_link_arguments(parser: argparse.ArgumentParser, *, ranks: list[int], rates: list[str]) -> None:
    """Add the options of all benchmarks that run ranks behind links."""
    parser.add_argument("--ranks", type=int, nargs="+", default=ranks, help="numbers of ranks")
    parser.add_argument(
        "--rate", nargs="+", default=rates, help=f"rates of links, as tc spells them, or {LOOPBACK}"
    )
    parser.add_argument(
        "--loopback",
        action="store_const",
        dest="rate",
        const=[LOOPBACK],
        help="use the loopback device instead of slow links, which does not require root",
    )
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)


def parse_arguments(
    parser: argparse.ArgumentParser, run_rank: Callable[[argparse.Namespace], Any]
) -> argparse.Namespace:
    """Parse the command line. In the process of a rank, run `run_rank` and exit.

    Rank 0 prints the result of `run_rank` as JSON. If a link is requested without root, exit with a message.
    """
    options = parser.parse_args()
    if options.as_rank:
        _run_as_rank(options, run_rank)
        sys.exit()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the links are removed
    if os.geteuid() != 0 and any(rate != LOOPBACK for rate in options.rate):
        sys.exit("error: network namespaces need root: run it with sudo, or with --loopback")
    return options


def _run_as_rank(options: argparse.Namespace, run_rank: Callable[[argparse.Namespace], Any]) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if os.environ["GLOO_SOCKET_IFNAME"] == INTERFACE:
        raise_priority()
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    found = run_rank(options)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def raise_priority() -> None:
    """Give this process a higher priority than other programs. This is acceptable because the ranks mostly wait."""
    autogroup = Path("/proc/self/autogroup")  # If this file exists, nice has an effect only inside a session.
    if autogroup.exists():
        autogroup.write_text("-19")
    os.nice(-19)


def run_ranks(script: str, ranks: int, rate: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run `script --as-rank *arguments` in one process for each rank.

    Args:
        script: The file of the benchmark.
        ranks: The number of ranks.
        rate: The rate of the link of each rank, as tc spells it, or LOOPBACK.
        arguments: Further arguments.

    Returns:
        The JSON object that rank 0 prints last.

    Raises:
        SystemExit: Rank 0 failed.
    """
    with ExitStack() as stack:
        machines = create_links(stack, ranks, rate) if rate != LOOPBACK else [None] * ranks
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
            raise SystemExit(f"error: rank 0 failed with exit code {processes[0].returncode}")
        return json.loads(output.splitlines()[-1])


def create_links(stack: ExitStack, ranks: int, rate: str) -> list[str]:
    """Create network namespaces that are linked to one switch at the given rate. Return their names."""
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
    """Return the number of bytes that the kernel counted as sent on the interface of this rank."""
    name = os.environ["GLOO_SOCKET_IFNAME"]
    return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text())
