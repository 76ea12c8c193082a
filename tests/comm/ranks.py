"""Run a function as N gloo ranks on this machine: `run_ranks(4, function, x)` returns each rank's result."""

import io
import multiprocessing as mp
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as dist

_context = mp.get_context("forkserver")  # tests/conftest.py says what its server imports


def run_ranks(
    n: int,
    function: Callable[..., Any],
    *arguments: Any,
    dies: Collection[int] = (),
    timeout_s: float = 600,
) -> list[Any]:
    """function(*arguments) in each of n ranks; AssertionError with the traceback of a rank that raised.

    Results are in rank order, without those of the ranks that are expected to die.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_context.Pipe(duplex=False) for _ in range(n)]
        ranks = [
            _context.Process(target=_rank, args=(r, n, f"{folder}/store", pipes[r][1], function, arguments))
            for r in range(n)
        ]
        for rank in ranks:
            rank.start()
        for _, writer in pipes:
            writer.close()
        try:
            return [_receive(r, reader, timeout_s) for r, (reader, _) in enumerate(pipes) if r not in dies]
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()


def _receive(rank: int, reader: Any, timeout_s: float) -> Any:
    assert reader.poll(timeout_s), f"rank {rank} gave no result within {timeout_s} s"
    try:
        error, value = pickle.loads(reader.recv_bytes())
    except EOFError:
        raise AssertionError(f"rank {rank} ended without a result") from None
    assert error is None, f"rank {rank}:\n{error}"
    return value


def _rank(rank: int, n: int, store: str, writer: Any, function: Callable[..., Any], arguments: tuple) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group("gloo", store=dist.FileStore(store, n), rank=rank, world_size=n)
        # plain pickle: multiprocessing's own would share the tensors' memory, which ends with this process
        writer.send_bytes(pickle.dumps((None, function(*arguments))))
    except BaseException:
        writer.send_bytes(pickle.dumps((traceback.format_exc(), None)))
    writer.close()
    signal.pause()  # a rank that is done must not close connections that others still use; it is killed


def through_a_file(
    state: dict[str, Any], src: int = 0, group: dist.ProcessGroup | None = None
) -> dict[str, Any]:
    """The state that rank src has, saved and loaded by every rank of its group, or by the only process."""
    file = io.BytesIO()
    if not dist.is_initialized() or dist.get_rank() == src:
        torch.save(state, file)
    if dist.is_initialized():
        saved = [file.getvalue()]  # broadcasting `state` itself would pickle each of its tensors separately
        dist.broadcast_object_list(saved, src=src, group=group)
        file = io.BytesIO(saved[0])
    file.seek(0)
    return torch.load(file, weights_only=True)
