#!/usr/bin/env bash
# What only a GPU can show: equality of CPU and GPU bit for bit, and how fast the kernels are there.
#
#     scripts/gpu_check.sh [FOLDER_OF_WHEELS]
#
# Installs this checkout into the Python that runs (PYTHON=..., default python3) without asking any index; torch, CuPy,
# scikit-build-core, nanobind, cmake and ninja are expected there. Wheels in the folder (hydra-core, omegaconf,
# antlr4-python3-runtime ...) are installed first. Then: all kernels compiled, pytest -m gpu, the benchmarks, and one table
# at the end, in results/reference/numerics/gpu_check.md too.
set -u -o pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
WHEELS="${1:-}"
declare -a NAMES RESULTS
FAILED=0

step() {  # step NAME COMMAND...: runs it, notes how it ended
    local name="$1"
    shift
    echo "== $name: $*"
    local started=$SECONDS result=ok
    "$@" || { result="FAILED (exit $?)"; FAILED=1; }
    NAMES+=("$name")
    RESULTS+=("$result, $((SECONDS - started)) s")
}

install_wheels() { "$PYTHON" -m pip install --quiet --no-index --no-deps "$WHEELS"/*.whl; }

[ -n "$WHEELS" ] && step "wheels" install_wheels
step "install" "$PYTHON" -m pip install --quiet --no-build-isolation --no-deps .
step "device" "$PYTHON" -c 'import torch, cupy, custom_fp
print(torch.cuda.get_device_name(), "torch", torch.__version__, "CuPy", cupy.__version__, "backend", custom_fp.backend("cuda"))
assert custom_fp.backend("cuda") == "cuda"'
step "compile all kernels" "$PYTHON" -c 'from custom_fp import compiled, cuda
import cupy
capability = int(cupy.cuda.Device().compute_capability)
for part in dict.fromkeys(map(compiled.part_of, cuda.KERNELS)): compiled.binary(part, capability)'
# Only files with such tests, and no ini options: the machine need not have every plugin and oracle of the dev extra.
mapfile -t GPU_TESTS < <(grep -rl --include='test_*.py' 'mark\.gpu' tests)
step "tests" "$PYTHON" -m pytest -o addopts= -m gpu -q -ra -p no:cacheprovider "${GPU_TESTS[@]}"
step "benchmark, GPU" "$PYTHON" scripts/bench_numerics.py --device cuda --log2n 26 --output results/reference/numerics/bench_gpu.md
step "benchmark, CPU" "$PYTHON" scripts/bench_numerics.py --output results/reference/numerics/bench_gpu_machine_cpu.md
step "step time" "$PYTHON" scripts/bench_step.py --device cuda

echo
{
    printf '# scripts/gpu_check.sh\n\n%s\n\n| step | result |\n| --- | --- |\n' \
        "$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name(), "torch", torch.__version__)'), $(git rev-parse --short HEAD)"
    for i in "${!NAMES[@]}"; do printf '| %s | %s |\n' "${NAMES[$i]}" "${RESULTS[$i]}"; done
} | tee results/reference/numerics/gpu_check.md
exit $FAILED
