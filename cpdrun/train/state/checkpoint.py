"""Checkpoints. A run that resumes from a checkpoint has the same result as a run that was never stopped.

All random numbers are derived from (seed, epoch, step, worker), see :mod:`cpdrun.train.seeds`, so checkpoints contain
no states of random generators.

A checkpoint is a ZIP archive written by torch.save. The archive's comment, which is the last part of the file (APPNOTE
4.3.16), contains a seal: the name of the run, the version of the layout, and the SHA-256 of all bytes before the
comment and of the name. torch.load ignores the comment.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

LAYOUT = 2  # the version of the contents. Increase it when the name or the form of a part changes.
CHUNK_BYTES = 1 << 20
# The largest size of a seal. A name has at most 255 bytes, which JSON may escape to 1,530.
SEAL_BYTES = 2048
LENGTH_BYTES = 2  # size of the field before the comment that contains its length


class UnreadableError(Exception):
    """Raised if a file is damaged, belongs to another run, or is not a checkpoint. The message is one line."""


def save(path: Path, state: dict[str, Any], run: str) -> None:
    """Write a checkpoint atomically. The previous checkpoint is kept until the next save.

    Args:
        path: The checkpoint's file.
        state: The state to save.
        run: The name of the run, which the seal contains.

    Raises:
        OSError: The file cannot be written. Existing checkpoints are then unchanged.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("w+b") as file:
            torch.save(state, file)
            _seal(file, run)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        cause = error.__context__  # torch reports a full disk as "unexpected pos 704 vs 598".
        if isinstance(error, RuntimeError) and isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise
    if path.exists():
        path.replace(candidates(path)[1])
    temporary.replace(path)


def choose(path: Path, run: str) -> Path | None:
    """Return the latest intact checkpoint of the given run, or None.

    Unreadable checkpoints are reported in a warning and renamed to unreadable.pt, so that the next save does not
    replace an intact checkpoint with them. Only one process may call this.
    """
    found, refused = None, []
    for candidate in candidates(path):
        if found is None and os.path.lexists(candidate):
            try:
                with candidate.open("rb") as file:
                    _check_seal(file, run)
                found = candidate
            except (UnreadableError, OSError) as error:
                refused.append(f"{candidate} cannot be read ({error})")
                candidate.replace(_free_name(candidate.with_name("unreadable.pt")))
    instead = "resuming from the previous one" if found else "starting from the beginning"
    for line in refused:
        print(f"warning: {line}; {instead}", file=sys.stderr)
    return found


def read(path: Path, device: torch.device) -> dict[str, Any]:
    """Return the state in a checkpoint that `choose` returned, with its tensors on `device`."""
    return torch.load(path, map_location=device, weights_only=True)


def candidates(path: Path) -> tuple[Path, Path]:
    """Return the paths of possible checkpoints, latest first."""
    return path, path.with_name("previous.pt")


def weights_sha256(model: nn.Module) -> str:
    """Return a digest of all parameters and buffers in the order of state_dict. Equal digests mean equal bits."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _seal(file: BinaryIO, run: str) -> None:
    """Append the seal to the archive in `file` as its comment, and set the length of the comment."""
    end = file.seek(0, os.SEEK_END)
    length = len(_seal_of(run, "0" * 64))
    file.seek(end - LENGTH_BYTES)
    file.write(length.to_bytes(LENGTH_BYTES, "little"))
    seal = _seal_of(run, _digest(file, end, run))
    file.seek(end)
    file.write(seal)


def _check_seal(file: BinaryIO, run: str) -> None:
    """Raise UnreadableError if the file is damaged or was written for another run."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - SEAL_BYTES))
    line = file.read().rpartition(b"\n")[2]
    try:
        seal = json.loads(line)
        name, digest, layout = seal["run"], seal["sha256"], seal.get("layout", 1)
    except (ValueError, KeyError, TypeError):
        raise UnreadableError(
            "it is truncated or not a checkpoint of cpdrun: there is no digest at its end"
        ) from None
    if digest != _digest(file, size - len(line) - 1, name):
        raise UnreadableError("it is damaged: its bytes differ from those that were written")
    if name != run:
        raise UnreadableError(f"it belongs to another run, {name!r}")
    if layout != LAYOUT:
        raise UnreadableError("it was written by a version of cpdrun with another layout of checkpoints")


def _seal_of(run: str, digest: str) -> bytes:
    return b"\n" + json.dumps({"run": run, "layout": LAYOUT, "sha256": digest}).encode()


def _digest(file: BinaryIO, size: int, run: str) -> str:
    """Return the SHA-256 of the first `size` bytes of `file` and of the run's name."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(CHUNK_BYTES, size))):
        digest.update(chunk)
        size -= len(chunk)
    digest.update(str(run).encode())
    return digest.hexdigest()


def _free_name(path: Path) -> Path:
    """Return the first unused name among `path`, unreadable-2.pt, unreadable-3.pt and so on."""
    number, name = 2, path
    while os.path.lexists(name):
        name, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return name
