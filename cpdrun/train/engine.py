"""The engine, which starts the ranks of a run with torchrun's own machinery in tenths of a second.

    python -m cpdrun.train.engine --warm FD    import torch once, then fork one engine for each connection
    python -m cpdrun.train.engine --once FD    serve one connection
    python -m cpdrun.train.engine --task JSON  serve one request as a task of srun, and print the answer

`torchrun` takes three seconds per run, nearly all of it for `import torch`. After that import, it calls
`torch.distributed.launcher.api.elastic_launch`. The engine calls the same function with start_method="fork" in a
process that has imported torch but has run no operator. A fork after an OpenMP region hangs, and a fork after the
initialization of CUDA breaks CUDA in the child.

A connection is a Unix stream socket to an agent (cpdrun.launch.attempt.agent). The agent sends one request, a line of
JSON, with the file descriptors of the run's lock and of the attempt's log:

    {"do": "run", "entry": MODULE, "run_dir": PATH, "attempt_dir": PATH, "nproc": 2, "threads": 1, "nodes": 1,
     "elastic": false, "environ": {}}
    {"do": "check", "by": MODULE, "configs": [...]}

The engine replies with its process ID, `{"pid": 4711}`, and with one answer, which is `{"exit_code": 0, "rank": null,
"note": ""}` or `{"problems": [...], "notes": [...]}`. The ranks inherit the connection, so the agent reads end of file
when all processes of the run have ended. When the agent closes its side, the engine kills its ranks and itself. Ranks
end with their engine, an engine ends with its warm process, and a warm process ends with its launcher
(PR_SET_PDEATHSIG).
"""

import argparse
import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from typing import Any

from cpdrun.parent import die_with

CHECK_IMPORTS = ["cpdrun.train.preflight.check"]
FIRST_STEP_IMPORTS = [
    "torch.distributed.launcher.api",
    "torch._dynamo",  # Otherwise, the first optimizer imports it, which takes 1.5 s.
    "cpdrun.train.ranks.rendezvous",
    "cpdrun.train.rank",
    "custom_fp.ops",
]
MONITOR_INTERVAL_S = 0.02
TERMINATING_S = 3  # the time for ranks to end after SIGTERM when another rank has failed
MAX_DEATHS = 3  # the number of deaths without a further step after which an elastic run fails


def main(argv: list[str]) -> None:
    """Run the engine in the mode that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m cpdrun.train.engine")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--warm", type=int, metavar="FD", help="a socket over which connections arrive")
    how.add_argument("--once", type=int, metavar="FD", help="a connection")
    how.add_argument("--task", metavar="JSON", help="serve this request and print the answer")
    parser.add_argument("--parent", type=int, help="end when this process ends")
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with(arguments.parent)
    if arguments.task is not None:
        answer = start_ranks(json.loads(arguments.task))
        print(json.dumps({**answer, "ended": time.time()}), flush=True)
        code = answer["exit_code"]
        # Encode signals as a shell does. `os._exit` skips exit handlers, because Triton's handler prints messages.
        os._exit(code if code >= 0 else 128 - code)
    if arguments.once is not None:
        _serve(socket.socket(fileno=arguments.once))
    else:
        serve_warm(socket.socket(fileno=arguments.warm))


def serve_warm(control: socket.socket) -> None:
    """Fork one engine for every connection that arrives over `control`, until its other end closes.

    If a check is already waiting, it starts before the second and longer half of the imports, because a check rarely
    needs them.
    """
    # Engines answer over their connections, so this process does not need their exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _import(CHECK_IMPORTS)
    if select.select([control], [], [], 0)[0] and not _fork_engine(control):
        return
    _import_for_first_step()
    while _fork_engine(control):
        pass


def _fork_engine(control: socket.socket) -> bool:
    """Fork an engine for the next connection. Return False if the other end of `control` is closed."""
    this = os.getpid()
    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not descriptors:
        return False
    if os.fork() == 0:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(this)
        _serve(socket.socket(fileno=descriptors[0]))
    os.close(descriptors[0])
    return True


def _serve(connection: socket.socket) -> None:
    """Answer the request of `connection`, then end this process."""
    code = 1
    try:
        request, descriptors = _receive(connection)
        _answer(
            connection, {"pid": os.getpid()}
        )  # The agent can then kill this process even if it is stopped.
        if request["do"] == "check":
            answer: dict[str, Any] = _check(request["by"], request["configs"])
        else:
            _lock, log = descriptors  # The lock is kept open only so that the ranks inherit it.
            os.dup2(log, 1)
            os.dup2(log, 2)
            threading.Thread(target=_die_when_closed, args=(connection,), daemon=True).start()
            answer = start_ranks(request)
        _answer(connection, answer)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start_ranks(request: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks until they have ended.

    If a signal kills a rank of an elastic run on one node, all ranks are restarted, as torchrun does, and resume from
    the memory checkpoint of their last agreed step. After an error, ranks are not restarted, because the error would
    occur again.

    Returns:
        A dictionary with "exit_code" (0, or that of the first rank that failed; -n for signal n), "rank" (the rank that
        failed) and "note" (further information).
    """
    _import_for_first_step()
    importlib.import_module(request["entry"])  # Import the module only once for all ranks.
    os.environ.update(request["environ"])
    os.environ["CPDRUN_ATTEMPT_DIR"] = request["attempt_dir"]
    os.environ["OMP_NUM_THREADS"] = str(request["threads"])
    if request["nodes"] == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # This logger only repeats that a rank failed, and its formatter imports sympy, which takes 1.5 s.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    if not request.get("elastic") or request["nodes"] > 1:
        return _start_once(request)
    return _start_with_restarts(request)


def _start_with_restarts(request: dict[str, Any]) -> dict[str, Any]:
    """Restart the ranks until they end without a signal, or until MAX_DEATHS restarts have brought no further step."""
    from cpdrun.train.state import memory_checkpoint

    snapshots, latest_step, deaths = memory_checkpoint.create(), -1, 0
    while (answer := _start_once(request))["exit_code"] < 0:
        killer = signal.Signals(-answer["exit_code"])
        board = snapshots.record_death(answer["rank"], killer)
        deaths = deaths + 1 if board.step <= latest_step else 1
        latest_step = max(latest_step, board.step)
        if deaths >= MAX_DEATHS:
            return answer | {
                "note": f"after step {board.step}, {deaths} times without a further step: given up"
            }
        message = f"rank {answer['rank']} was killed by {killer.name} after step {board.step}: all ranks start again"
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}", flush=True)
    return answer


def _start_once(request: dict[str, Any]) -> dict[str, Any]:
    """Start the ranks once and return the answer of `start_ranks`."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from cpdrun.train.ranks.rendezvous import Gate

    _shorten_termination()
    gate = Gate(request["nproc"] // request["nodes"])
    try:
        codes = elastic_launch(_launch_config(request), _rank)(
            request["entry"], request["run_dir"], request["threads"], gate
        )
        return {"exit_code": max(codes.values()), "rank": None, "note": ""}
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return {"exit_code": failure.exitcode, "rank": rank, "note": ""}
    finally:
        gate.close()


def _shorten_termination() -> None:
    """Make torch wait TERMINATING_S instead of 30 s before it kills ranks that do not end after SIGTERM."""
    from torch.multiprocessing.spawn import ProcessContext

    wait = getattr(ProcessContext, "_join_procs_with_timeout", None)  # torch has no setting for the timeout
    if wait is not None:
        patched: Any = ProcessContext
        patched._join_procs_with_timeout = lambda context, timeout: wait(context, min(timeout, TERMINATING_S))


def _launch_config(request: dict[str, Any]) -> Any:
    """Return torchrun's settings. On one node, the store is on loopback. Several nodes use the rendezvous of c10d."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    from cpdrun.train.ranks.rendezvous import LOOPBACK, LoopbackRendezvous

    nodes = request["nodes"]
    if nodes == 1:
        rendezvous: dict[str, Any] = {"rdzv_backend": LoopbackRendezvous.BACKEND, "local_addr": LOOPBACK}
    else:
        rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": request["rendezvous"]}
    # LaunchConfig checks whether there is a GPU. If it uses NVML, this does not initialize CUDA before the fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=request["nproc"] // nodes,
        run_id=request.get("rendezvous_id") or uuid.uuid4().hex,
        max_restarts=0,
        monitor_interval=MONITOR_INTERVAL_S,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(
            log_dir=os.devnull
        ),  # Each rank opens its own log, see cpdrun.train.rank.
        shutdown_timeout=5,
        signals_to_handle=",".join(number.name for number in _handled_signals()),
        **rendezvous,
    )


def _rank(entry: str, run_dir: str, threads: int, gate: Any) -> int:
    """Call `run_rank` of the module `entry` in a forked process, and report its end to the engine and to the log.

    A rank that was requested to stop returns normally, because torch's agent would end all other ranks if one rank
    exits with an error.
    """
    die_with(os.getppid())
    # The handlers of torch's agent are only correct in the agent's own process.
    for number in _handled_signals():
        signal.signal(number, signal.SIG_DFL)
    gate.pass_through(int(os.environ["LOCAL_RANK"]))
    try:
        import torch

        torch.set_num_threads(threads)
        code = importlib.import_module(entry).run_rank(run_dir)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    if code not in (0, os.EX_TEMPFAIL):
        sys.exit(code)
    return code


def _check(by: str, configs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Call `check` of the module `by`.

    This process does nothing else and compiles nothing, so its optimizers do not need to import torch._dynamo.
    """
    from torch.optim import Optimizer

    patched: Any = Optimizer
    patched.add_param_group = getattr(Optimizer.add_param_group, "__wrapped__", Optimizer.add_param_group)
    return importlib.import_module(by).check(configs)


def _import_for_first_step() -> None:
    """Import everything that the first step needs, once for all ranks."""
    _import(CHECK_IMPORTS + FIRST_STEP_IMPORTS)
    importlib.import_module("cpdrun.train.state.provenance").prepare()
    gc.freeze()  # Memory pages that the garbage collectors of the ranks do not visit remain shared.


def _import(modules: list[str]) -> None:
    """Import modules without garbage collection, which would take a fifth of the time."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.enable()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the request and the file descriptors that came with its first byte."""
    data, descriptors, _, _ = socket.recv_fds(connection, 65536, 2)
    while not data.endswith(b"\n"):
        more = connection.recv(65536)
        if not more:
            os._exit(0)  # The agent ended before it sent a request.
        data += more
    return json.loads(data), descriptors


def _answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _handled_signals() -> list[signal.Signals]:
    """Return the signals that torch's agent handles in the engine, except a SIGHUP that nohup ignores."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]
    return numbers if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*numbers, signal.SIGHUP]


def _die_when_closed(connection: socket.socket) -> None:
    """Kill this engine and, through PR_SET_PDEATHSIG, its ranks when the agent closes its side."""
    with contextlib.suppress(OSError):
        while connection.recv(1):
            pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
