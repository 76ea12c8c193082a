"""The engine: starts the ranks of a run with torchrun's own machinery, in tenths of a second.

    python -m cpdrun.train.engine --warm FD    import torch once, then fork one engine for each connection
    python -m cpdrun.train.engine --once FD    be the engine of one connection
    python -m cpdrun.train.engine --task JSON  be one of a run's engines, a task of srun; prints its answer

`torchrun` costs three seconds a run, nearly all of it `import torch`. What it does after that import is
`torch.distributed.launcher.api.elastic_launch`; here the same function starts the ranks with
start_method="fork" from a process that has torch in memory and has run no operator (a fork after an OpenMP
region hangs, and a fork after CUDA's initialisation breaks CUDA in the child).

A connection is a Unix stream socket whose other end the asking agent holds (cpdrun.launch.attempt.agent). Over it
goes one request, a line of JSON, with the descriptors of the run's lock and of the attempt's log

    {"do": "run", "entry": MODULE, "run_dir": PATH, "attempt_dir": PATH, "nproc": 2, "threads": 1, "nodes": 1,
     "elastic": false, "environ": {}}
    {"do": "check", "by": MODULE, "configs": [...]}

and back come `{"pid": 4711}`, the engine's, and one answer, `{"exit_code": 0, "rank": null, "note": ""}` or
`{"problems": [...], "notes": [...]}`. The ranks inherit the connection, so its end of file tells the agent that every
process of the run is gone; the other way round, the engine kills its ranks and itself when the agent's side closes. No
rank outlives its engine, no engine its warm process, no warm process its launcher (PR_SET_PDEATHSIG).
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

CHECK_IMPORTS = ["cpdrun.train.preflight.look"]
FIRST_STEP_IMPORTS = [
    "torch.distributed.launcher.api",
    "torch._dynamo",  # 1.5 s that the first optimizer made would spend
    "cpdrun.train.ranks.rendezvous",
    "cpdrun.train.rank",
    "custom_fp.ops",
]
MONITOR_INTERVAL_S = 0.02
TERMINATING_S = 3  # for ranks to end after SIGTERM, once another one has failed; a stopped process ignores it
MOST_DEATHS = 3  # without a further step, of an elastic run


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m cpdrun.train.engine")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--warm", type=int, metavar="FD", help="a socket over which connections arrive")
    how.add_argument("--once", type=int, metavar="FD", help="a connection")
    how.add_argument("--task", metavar="JSON", help="a request; the answer is printed")
    parser.add_argument("--parent", type=int, help="die when this process does")
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        die_with(arguments.parent)
    if arguments.task is not None:
        answer = start_ranks(json.loads(arguments.task))
        print(json.dumps({**answer, "ended": time.time()}), flush=True)
        code = answer["exit_code"]
        # As a shell tells of a signal; and at once, for Triton has much to say in an ordinary end.
        os._exit(code if code >= 0 else 128 - code)
    if arguments.once is not None:
        _serve(socket.socket(fileno=arguments.once))
    else:
        serve_warm(socket.socket(fileno=arguments.warm))


def serve_warm(control: socket.socket) -> None:
    """Fork one engine for every connection that arrives over `control`, until its other end closes.

    A check that waits already is begun before the longer half of the imports: most of what it finds needs none of it.
    """
    # An engine answers over its connection; nobody waits for it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _import(CHECK_IMPORTS)
    if select.select([control], [], [], 0)[0] and not _fork_an_engine(control):
        return
    _import_what_a_first_step_imports()
    while _fork_an_engine(control):
        pass


def _fork_an_engine(control: socket.socket) -> bool:
    """False where the other end of `control` is closed."""
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
    """Answer the one request of `connection`, then end this process."""
    code = 1
    try:
        request, descriptors = _receive(connection)
        _answer(connection, {"pid": os.getpid()})  # so that it can be killed when it is stopped itself
        if request["do"] == "check":
            answer: dict[str, Any] = _look(request["by"], request["configs"])
        else:
            _lock, log = descriptors  # the lock need only stay open: the ranks inherit it
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
    """Run the ranks to their end: {"exit_code": 0, or of the first to fail (-n: signal n), "rank": which, "note": what
    else there is to say}.

    Of an elastic run on one node all are started again, as torchrun does, when one was killed by a signal: they go on
    from what was kept of their last agreed step. Not for an error, which would come again.
    """
    _import_what_a_first_step_imports()
    importlib.import_module(request["entry"])  # once, for all ranks
    os.environ.update(request["environ"])
    os.environ["CPDRUN_ATTEMPT_DIR"] = request["attempt_dir"]
    os.environ["OMP_NUM_THREADS"] = str(request["threads"])
    if request["nodes"] == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # It only repeats that a rank failed, and its formatter imports sympy for that, which takes 1.5 s.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    if not request.get("elastic") or request["nodes"] > 1:
        return _start_once(request)
    return _start_again_and_again(request)


def _start_again_and_again(request: dict[str, Any]) -> dict[str, Any]:
    """Until they end otherwise than by a signal, or MOST_DEATHS have brought no further step."""
    from cpdrun.train.state import kept

    held, farthest, in_vain = kept.begin(), -1, 0
    while (answer := _start_once(request))["exit_code"] < 0:
        killer = signal.Signals(-answer["exit_code"])
        board = held.died(answer["rank"], killer)
        in_vain = in_vain + 1 if board.step <= farthest else 1
        farthest = max(farthest, board.step)
        if in_vain >= MOST_DEATHS:
            return answer | {
                "note": f"after step {board.step}, {in_vain} times without a further step: given up"
            }
        said = f"rank {answer['rank']} was killed by {killer.name} after step {board.step}: all ranks start again"
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {said}", flush=True)
    return answer


def _start_once(request: dict[str, Any]) -> dict[str, Any]:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from cpdrun.train.ranks.rendezvous import Gate

    _kill_soon()
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


def _kill_soon() -> None:
    """Have torch wait TERMINATING_S instead of 30 s before it kills ranks that do not end after SIGTERM."""
    from torch.multiprocessing.spawn import ProcessContext

    wait = getattr(ProcessContext, "_join_procs_with_timeout", None)  # torch has no setting for it
    if wait is not None:
        ProcessContext._join_procs_with_timeout = lambda context, timeout: wait(
            context, min(timeout, TERMINATING_S)
        )


def _launch_config(request: dict[str, Any]) -> Any:
    """torchrun's settings: a store on loopback on one node, c10d's rendezvous over several."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    from cpdrun.train.ranks.rendezvous import LOOPBACK, LoopbackRendezvous

    nodes = request["nodes"]
    if nodes == 1:
        rendezvous: dict[str, Any] = {"rdzv_backend": LoopbackRendezvous.BACKEND, "local_addr": LOOPBACK}
    else:
        rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": request["rendezvous"]}
    # LaunchConfig asks whether there is a GPU; through NVML, that does not initialise CUDA before the fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=request["nproc"] // nodes,
        run_id=request.get("rendezvous_id") or uuid.uuid4().hex,
        max_restarts=0,
        monitor_interval=MONITOR_INTERVAL_S,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # a rank opens its own log, see cpdrun.train.rank
        shutdown_timeout=5,
        signals_to_handle=",".join(number.name for number in _handled_signals()),
        **rendezvous,
    )


def _rank(entry: str, run_dir: str, threads: int, gate: Any) -> int:
    """What a forked rank does: `run_rank` of the module `entry`, with an end that the engine and the log both see.

    A rank that stops on request returns, since torch's agent ends the others when one exits with an error.
    """
    die_with(os.getppid())
    for number in _handled_signals():
        signal.signal(number, signal.SIG_DFL)  # torch's agent left handlers that only make sense in itself
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


def _look(by: str, configs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """`look` of the module `by`. This process does nothing else, and compiles nothing: its optimizers need not import
    torch._dynamo."""
    from torch.optim import Optimizer

    Optimizer.add_param_group = getattr(Optimizer.add_param_group, "__wrapped__", Optimizer.add_param_group)
    return importlib.import_module(by).look(configs)


def _import_what_a_first_step_imports() -> None:
    """Import once, for all ranks."""
    _import(CHECK_IMPORTS + FIRST_STEP_IMPORTS)
    importlib.import_module(
        "cpdrun.train.state.provenance"
    ).distributions_by_module()  # .2 s, kept for all runs
    gc.freeze()  # what a rank's collector never visits, it does not copy either


def _import(modules: list[str]) -> None:
    """Without the garbage collector, which takes a fifth of the time."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.enable()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The request's line and the descriptors that came with its first byte."""
    data, descriptors, _, _ = socket.recv_fds(connection, 65536, 2)
    while not data.endswith(b"\n"):
        more = connection.recv(65536)
        if not more:
            os._exit(0)  # the agent went away before it had asked
        data += more
    return json.loads(data), descriptors


def _answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _handled_signals() -> list[signal.Signals]:
    """What torch's agent handles in the engine, less a SIGHUP that nohup ignores: it stays ignored."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]
    return numbers if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*numbers, signal.SIGHUP]


def _die_when_closed(connection: socket.socket) -> None:
    """Kill this engine, and through PR_SET_PDEATHSIG its ranks, once the agent's side is closed."""
    with contextlib.suppress(OSError):
        while connection.recv(1):
            pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
