#!/usr/bin/env bash
# Check what needs a GPU: whether CPU and GPU agree bit for bit, and how fast the kernels are. Ten minutes at most.
#
#     scripts/gpu_check.sh [FOLDER_OF_WHEELS]
#
# Installs this checkout into a Python (PYTHON=..., default python3) without network access. torch, CuPy,
# scikit-build-core, nanobind, cmake, ninja and setuptools must be installed there. Wheels in the folder (hydra-core,
# omegaconf, antlr4-python3-runtime ...) are installed first. Then it compiles all kernels, runs pytest -m gpu and the
# benchmarks, and writes a table, also to results/reference/numerics/gpu_check.md. If a step fails or exceeds its share of
# TOTAL_S=600 seconds, the others still run, and the exit status is 1. Without a GPU, the exit status is 2.
set -u -o pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
TOTAL_S="${TOTAL_S:-600}"
WHEELS="${1:-}"
TABLE=results/reference/numerics
ROWS=""
FAILED=0
SAID="$(mktemp)"
trap 'rm -f "$SAID"' EXIT

DEVICE="$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name(), "torch", torch.__version__)' 2>"$SAID")" || {
    echo "error: no GPU that $PYTHON's torch can use: $(tail -n 1 "$SAID")" >&2
    exit 2
}

step() {  # step NAME PERCENT COMMAND...: run a command, stop it at that share of the time, and record the result
    local name="$1" left=$((TOTAL_S * $2 / 100 - SECONDS)) started=$SECONDS result=ok code=0
    shift 2
    echo "== $name: $*"
    if [ "$left" -le 0 ]; then
        result="FAILED: no time was left for it"
    else
        timeout --signal=INT --kill-after=10 "$left" "$@" 2>&1 | tee "$SAID" || code=${PIPESTATUS[0]}
        [ "$code" = 0 ] || result="FAILED (exit $code): $(grep . "$SAID" | tail -n 1 | tr '|`' '/ ' | cut -c 1-160)"
        [ "$code" = 124 ] || [ "$code" = 137 ] && result="FAILED: not done after $left s"
    fi
    [ "$result" = ok ] || FAILED=1
    echo "-- $name: $result"
    ROWS+="| $name | $result | $((SECONDS - started)) |"$'\n'
}

[ -n "$WHEELS" ] && step "wheels" 5 "$PYTHON" -m pip install --quiet --no-index --no-deps "$WHEELS"/*.whl
step "install" 35 "$PYTHON" -m pip install --quiet --no-build-isolation --no-deps ./kernels .
step "device" 38 "$PYTHON" -c 'import torch, cupy, custom_fp
print(torch.cuda.get_device_name(), "torch", torch.__version__, "CuPy", cupy.__version__, "backend", custom_fp.backend("cuda"))
assert custom_fp.backend("cuda") == "cuda"'
step "compile all kernels" 55 "$PYTHON" -c 'from concurrent.futures import ThreadPoolExecutor
import torch
import cupy
from custom_fp import cuda, nvrtc
capability = int(cupy.cuda.Device().compute_capability)
with ThreadPoolExecutor() as pool:
    list(pool.map(lambda part: nvrtc.binary(part, capability), dict.fromkeys(map(nvrtc.part_of, cuda.KERNELS))))'
# Run only files with GPU tests, and without ini options, because plugins and libraries of the dev extra may be missing.
mapfile -t GPU_TESTS < <(grep -rl --include='test_*.py' 'mark\.gpu' tests kernels/tests)
# If pytest-xdist is installed, the tests run in several processes, because they spend most of their time computing the
# expected values on the CPU.
WORKERS="$("$PYTHON" -c 'import xdist; print("-n8")' 2>/dev/null)"
# PYTHONSAFEPATH=1 makes Python import the installed cpdrun. The copy in this folder lacks the packaged configuration.
step "tests" 80 env PYTHONSAFEPATH=1 "$PYTHON" -m pytest -o addopts= -m gpu -q -rfE $WORKERS -p no:cacheprovider "${GPU_TESTS[@]}"
step "benchmark, GPU" 90 "$PYTHON" scripts/benchmarks/numerics.py --device cuda --log2n 26 --output $TABLE/bench_gpu.md
step "step time" 94 "$PYTHON" scripts/benchmarks/training_step.py --device cuda
step "benchmark, CPU" 99 "$PYTHON" scripts/benchmarks/numerics.py --log2n 22 --repeats 5 --output $TABLE/bench_gpu_machine_cpu.md

echo
printf '# scripts/gpu_check.sh\n\n%s, commit %s, %s s\n\n| step | result | seconds |\n| --- | --- | ---: |\n%s' \
    "$DEVICE" "$(git rev-parse --short HEAD)" $SECONDS "$ROWS" | tee $TABLE/gpu_check.md
exit $FAILED
