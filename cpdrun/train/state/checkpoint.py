"""Checkpoints: all that a run needs to go on as if it had never stopped.

Every random draw is derived from (seed, epoch, step, worker), see :mod:`cpdrun.train.seeds`, so no
generator's state is kept.

A checkpoint is what torch.save writes, a ZIP archive, and in the archive's comment (APPNOTE 4.3.16: the last bytes of
the file) the name of the run, the layout of what is in it, and the SHA-256 of every byte before and of that name.
torch.load reads it as it is.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

LAYOUT = 2  # of what a checkpoint holds; raised when a part is named or formed in another way
CHUNK_BYTES = 1 << 20
SEAL_BYTES = 2048  # no seal is longer: a name has 255 bytes at most, six times that as JSON
LENGTH_BYTES = 2  # of the comment, as the archive says just before it


class UnreadableError(Exception):
    """A checkpoint that is damaged, of another run, or none at all: why, in a line."""


def save(path: Path, state: dict[str, Any], run: str) -> None:
    """Write `state` of the run of that name in one step; the checkpoint before it stays beside it until the next save.

    Raises OSError where the disk refuses it; what was there is then untouched.
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
        cause = error.__context__  # torch reports a full disk as "unexpected pos 704 vs 598"
        if isinstance(error, RuntimeError) and isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise
    if path.exists():
        path.replace(candidates(path)[1])
    temporary.replace(path)


def choose(path: Path, run: str) -> Path | None:
    """The last whole checkpoint of the run of that name; None where there is none.

    One that is damaged, of another run, or no file at all is named in a warning and set aside, as unreadable.pt: it
    must not push out the one before at the next save. For one process alone to call.
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
    instead = "going on from the one before" if found else "starting from the beginning"
    for line in refused:
        print(f"warning: {line}; {instead}", file=sys.stderr)
    return found


def read(path: Path, device: torch.device) -> dict[str, Any]:
    """The state in a checkpoint that `choose` found, its tensors on `device`."""
    return torch.load(path, map_location=device, weights_only=True)


def candidates(path: Path) -> tuple[Path, Path]:
    """Where checkpoints may lie, the latest first."""
    return path, path.with_name("previous.pt")


def weights_sha256(model: nn.Module) -> str:
    """Digest of every parameter and buffer, in the order of state_dict: equal digests, equal bits."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _seal(file: BinaryIO, run: str) -> None:
    """Append the seal to the archive in `file` and tell the archive the length of its comment."""
    end = file.seek(0, os.SEEK_END)
    length = len(_seal_of(run, "0" * 64))
    file.seek(end - LENGTH_BYTES)
    file.write(length.to_bytes(LENGTH_BYTES, "little"))
    seal = _seal_of(run, _digest(file, end, run))
    file.seek(end)
    file.write(seal)


def _check_seal(file: BinaryIO, run: str) -> None:
    """Raises UnreadableError where the file is damaged, or was written for another run."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - SEAL_BYTES))
    line = file.read().rpartition(b"\n")[2]
    try:
        seal = json.loads(line)
        name, digest, layout = seal["run"], seal["sha256"], seal.get("layout", 1)
    except (ValueError, KeyError, TypeError):
        raise UnreadableError("it is cut short or no checkpoint of cpdrun: no digest at its end") from None
    if digest != _digest(file, size - len(line) - 1, name):
        raise UnreadableError("it is damaged: its bytes are not those that were written")
    if name != run:
        raise UnreadableError(f"it is of another run, {name!r}")
    if layout != LAYOUT:
        raise UnreadableError(
            "it was written by a version of cpdrun that laid checkpoints out in another way"
        )


def _seal_of(run: str, digest: str) -> bytes:
    return b"\n" + json.dumps({"run": run, "layout": LAYOUT, "sha256": digest}).encode()


def _digest(file: BinaryIO, size: int, run: str) -> str:
    """SHA-256 of the first `size` bytes of `file` and of the run's name."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(CHUNK_BYTES, size))):
        digest.update(chunk)
        size -= len(chunk)
    digest.update(str(run).encode())
    return digest.hexdigest()


def _free_name(path: Path) -> Path:
    """`path`, or where something has that name, the first of unreadable-2.pt, unreadable-3.pt ... that is free."""
    number, name = 2, path
    while os.path.lexists(name):
        name, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return name
