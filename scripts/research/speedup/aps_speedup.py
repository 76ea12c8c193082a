"""Predict how much faster a training step is with APS and fewer bits, after Han, Demmel and You (arXiv 1911.08907).

    python scripts/research/speedup/aps_speedup.py > results/reference/costmodel/aps_speedup.csv

The paper predicts its speed-up with a performance model of its own cluster. This script uses cpdrun's cost model: 256
workers, 8 to a machine, exchange the gradients of ResNet50 after each step of 32 images, first inside each machine,
then over the one link of each machine, without overlap with the computation. With APS, workers also find the largest
value of each layer and agree on 4 bytes per layer. The links are those of alexnet_96gpu.yaml. Nothing is measured.
"""

import sys

import pandas as pd
from alexnet_96gpu import ASSUMPTIONS, read_case
from model_parallel import Cluster, Model, all_reduce_s

from cpdrun.costmodel import Codec

COMMAND = "python scripts/research/speedup/aps_speedup.py"
WORKERS, GPUS_PER_MACHINE = 256, 8
RESNET50 = Model(compute_s=32 / 370, samples=32, convolution_values=25_557_032, widths=())
LAYERS = 161  # tensors of weights, biases and normalization layers, each with a shift of its own
AGREEMENT = Codec(32, 0.0, 0.0, 0.0, 0.0)  # the largest exponents of all layers, 4 bytes each


def main() -> None:
    case = read_case(ASSUMPTIONS.read_text(encoding="utf-8"))
    rows = []
    for link, network in case.links.items():
        cluster = Cluster(WORKERS, GPUS_PER_MACHINE, case.inner, network)
        seconds = {
            bits: RESNET50.compute_s + all_reduce_s(RESNET50.convolution_values, cluster, case.codec(bits))
            for bits in (32, 16, 8, 4)
        }
        largest_s = RESNET50.convolution_values * case.codec_s
        agreed_s = largest_s + all_reduce_s(LAYERS, cluster, AGREEMENT)
        for bits in (8, 4):
            times = {f"times {other} bits": seconds[other] / (seconds[bits] + agreed_s) for other in (32, 16)}
            rows.append({"link": link, "bits": bits, **times})
    print(f"# {COMMAND}")
    print("# ResNet50, 256 workers with 32 images each; we assume 370 images per second and GPU in float32")
    pd.DataFrame(rows).to_csv(sys.stdout, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
