"""The provenance of a run: versions, machine, data, and the user's code."""

import hashlib
import platform
import site
import socket
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import torch

from cpdrun.record import RunDir, changes_of, git_commit, processor, write_json, write_text
from cpdrun.record.fingerprint import (
    OWN_PACKAGES,
    code_digest,
    data_digest,
    data_folders,
    file_digest,
    own_digest,
)
from cpdrun.train.ranks.torch_settings import numerics_facts

PACKAGES = ("cpdrun", "torch", "torchvision", "numpy", "hydra-core", "omegaconf")
DIFF_BYTES = 1 << 20  # the size at which code.diff is truncated


def write_environment(
    run: RunDir,
    device: torch.device,
    data: Any,
    config: Mapping[str, Any] | None = None,
    products: Mapping[str, Any] | None = None,
    attached: Mapping[str, Any] | None = None,
) -> None:
    """Write env.json and, if imported files differ from the last commit of the current repository, code.diff.

    code.diff contains only the user's imported modules and the script, because other files of the repository may
    contain data that their owner does not want to share.

    env.json contains the versions of all imported distributions, the device and the machine, and the entries below. A
    report says which entries differ between runs, except `hostname` and `platform`. It reports runs whose code or data
    differ as a mixture.

    - `float32`: `ieee`, or `tf32` if a GPU was allowed to round the inputs of float32 products and convolutions to
      TF32 (`tf32=true`, or a setting of the script);
    - `nondeterministic`, on a GPU: the operations that ran without a deterministic implementation, in which two runs of
      the same configuration can differ;
    - `cpu` and `cpu_vector`: the processor, and the vector instructions that determine the order of its sums;
    - `code`: digests of cpdrun and of the user's imported modules; `code_sha256`: the digest of all of them;
    - `data_path`, `data_folders` and `data_sha256`, if the dataset was read from files or knows its own digest;
    - `label_names`, if the dataset knows the names of its classes: in the order of their numbers;
    - `products`, if products are rounded: the rounded layers, the products `in float32`, the layers that rules name but
      that were `never called`, and the `coverage`: the share of the multiply-accumulates that read each format, or the
      reason why it was not counted;
    - `attached`: what cpdrun has intercepted in a user's script and what it has not changed;
    - `git_commit`: null outside a repository;
    - `git_diff`: the first ten digits of the SHA-256 of code.diff, or "none" if the code is as committed.

    Args:
        run: The run directory.
        device: The device of this rank.
        data: The dataset.
        config: The config of the run.
        products: The entry `products`.
        attached: The entry `attached`.
    """
    code = {"cpdrun": {"sha256": own_digest()}, **dict(_users_modules())}
    path = _path_of(data, config or {})
    diff, untracked = changes_of(
        [Path(entry["file"]) for entry in code.values() if "file" in entry] + _script(config)
    )
    cpu, vector = processor()
    run.code_diff.unlink(missing_ok=True)  # The existing file may come from an attempt with different code.
    if diff or untracked:
        names = "".join(f"# not in the repository: {name}\n" for name in untracked)
        write_text(run.code_diff, truncate(names + (diff or "")))
    write_json(
        run.env,
        {
            "python": platform.python_version(),
            "packages": _versions(),
            "custom_fp_backend": _backend(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
            **numerics_facts(device),
            "cpu": cpu,
            "cpu_vector": vector,
            "platform": platform.platform(),
            "hostname": socket.gethostname(),
            "code": code,
            "code_sha256": code_digest(code),
            "data_path": str(path) if path else None,
            "data_folders": data_folders(config or {}),
            "data_sha256": data_digest(path) if path else getattr(data, "sha256", None),
            **({"label_names": list(classes)} if (classes := getattr(data, "label_names", None)) else {}),
            **({"products": dict(products)} if products is not None else {}),
            **({"attached": dict(attached)} if attached is not None else {}),
            "git_commit": git_commit(),
            "git_diff": diff if diff is None else _digest(diff),
        },
    )


def prepare() -> None:
    """Compute and cache the facts that are the same for all runs: the package versions and the digest of cpdrun's code.

    This takes half a second, so the warm engine calls it once before it forks.
    """
    _versions()
    own_digest()


def truncate(diff: str) -> str:
    """Return `diff`, or its first DIFF_BYTES bytes and a line that reports the truncation."""
    data = diff.encode()
    if len(data) <= DIFF_BYTES:
        return diff
    return data[:DIFF_BYTES].decode("utf-8", "ignore") + f"\n# truncated: {len(data)} bytes in total\n"


def _digest(diff: str) -> str:
    return hashlib.sha256(diff.encode()).hexdigest()[:10] if diff else "none"


def _versions() -> dict[str, str | None]:
    """Return the versions of all imported distributions and of PACKAGES."""
    imported = {name.partition(".")[0] for name in sys.modules}
    distributions = {d for name in imported for d in distributions_by_module().get(name, ())}
    return {name: _version(name) for name in sorted(distributions.union(PACKAGES), key=str.lower)}


@cache
def distributions_by_module() -> Mapping[str, list[str]]:
    """Return the distributions that installed each top-level module, read from the metadata of all distributions."""
    return packages_distributions()


def _script(config: Mapping[str, Any] | None) -> list[Path]:
    """Return the file of a user's script, if the run has one."""
    script = (config or {}).get("script")
    if not isinstance(script, Mapping) or not script.get("path"):
        return []
    return [Path(script.get("work_dir") or ".", script["path"])]


def _users_modules() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name, the file and the digest of each imported module that belongs to no distribution."""
    installed = [*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()]
    roots = tuple({str(Path(folder)) + "/" for folder in installed} - {"/"})
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or file.startswith(roots):
            continue
        if name.partition(".")[0] in (*OWN_PACKAGES, "__main__", "__mp_main__"):
            continue
        path = Path(file).absolute()
        if path.suffix == ".py" and not _is_installed(path, roots) and (digest := file_digest(path)):
            yield name, {"file": str(path), "sha256": digest}


def _is_installed(path: Path, roots: tuple[str, ...]) -> bool:
    parts = path.parts
    return str(path).startswith(roots) or "site-packages" in parts or "dist-packages" in parts


def _path_of(data: Any, config: Mapping[str, Any]) -> Path | None:
    """Return the path of the data.

    This is the dataset's attribute `path`, which may be None. If the dataset has no such attribute, it is the first
    of its settings that is an existing path.
    """
    if hasattr(data, "path"):
        places = [str(data.path or "")]
    else:
        settings = config.get("data") or {}
        places = [v for k, v in settings.items() if isinstance(v, str) and k != "cache_dir"]
    for place in places:
        path = Path(place).expanduser()
        if place not in ("", ".") and path.exists():
            return path.resolve()
    return None


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _backend() -> str:
    import custom_fp

    return custom_fp.backend()
