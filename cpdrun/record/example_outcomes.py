"""Read and write the outcomes of a run's test examples: whether the run answered each example correctly.

Part of the difference between two runs is due to the choice of the test examples. This part does not average out with
more seeds, and outcomes are needed to compute it (`cpdrun.stats.finite_test_set`).

The file is written for classification. It is not written for segmentation, text and regression, for users' scripts, and
for workers that gossip. A report also works without it. The outcomes belong to the evaluation that done.json reports.

The file begins with one line of JSON of at most 1,024 bytes, which contains the metric and identifies the test set. The
rest of the file contains one bit per example in the order of the test set, packed as by `numpy.packbits`: the first
example is the highest bit of the first byte. Unused bits of the last byte are 0. The bits do not depend on the number
of processes. A file is ignored if the mean of its bits is not the value of its metric in done.json, or if it has more
than 4,194,304 examples. The keys of the line are:

Keys:
    record: The version of the record. The default is 1.
    metric (required): The metric of done.json that is the mean of the bits.
    samples (required): The number of examples.
    labels_sha256 (required): The SHA-256 of the labels in the order of the test set, as little-endian int64. Outcomes
        with different digests are not compared.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpdrun.record.entries import Result
from cpdrun.record.files import read_record, write_bytes
from cpdrun.record.layout import RunDir
from cpdrun.record.version import KEY, VERSION, newer

if TYPE_CHECKING:
    import numpy as np

MAX_EXAMPLES = 1 << 22  # Outcomes of larger test sets are not stored.
_MAX_HEADER_BYTES = 1 << 10
_SHA256_DIGITS = 64


@dataclass(frozen=True)
class ExampleOutcomes:
    """The outcomes of one evaluation.

    Attributes:
        metric: The name of the metric, which is the share of correct answers.
        samples: The number of examples.
        labels_sha256: The digest of the labels in order, as little-endian int64. Outcomes with different digests belong
            to different test sets, or to another order of the examples, and cannot be compared.
        bits: The packed outcomes. 1 means correct.
    """

    metric: str
    samples: int
    labels_sha256: str
    bits: bytes

    @property
    def mean(self) -> float:
        """The share of correct answers. It equals the recorded metric, bit for bit."""
        return int.from_bytes(self.bits).bit_count() / self.samples

    def unpack(self) -> "np.ndarray":
        """Return a uint8 array with 1 for each correct answer and 0 for each wrong answer."""
        import numpy as np

        return np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.samples)


def write_example_outcomes(run: RunDir, outcomes: ExampleOutcomes) -> None:
    """Write the outcomes of a run's final evaluation in one step. Raises OSError if the file cannot be written."""
    header = {
        KEY: VERSION,
        "metric": outcomes.metric,
        "samples": outcomes.samples,
        "labels_sha256": outcomes.labels_sha256,
    }
    write_bytes(run.example_outcomes, json.dumps(header).encode() + b"\n" + outcomes.bits)


def read_example_outcomes(run: RunDir, result: Result) -> ExampleOutcomes:
    """Return the outcomes of the test examples of a run whose done.json contains `result`.

    Raises:
        OSError: The file does not exist, cannot be read, is not a regular file, or is too large.
        ValueError: The file is damaged, was written by a newer version, or belongs to another result.
    """
    content = read_record(run.example_outcomes, _MAX_HEADER_BYTES + MAX_EXAMPLES // 8)
    line, end, bits = content.partition(b"\n")
    try:
        header = json.loads(line) if end and len(line) <= _MAX_HEADER_BYTES else None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ValueError("does not begin with a line of JSON that contains an object")
    if problem := newer(header):
        raise ValueError(problem)
    metric, samples, digest = (header.get(key) for key in ("metric", "samples", "labels_sha256"))
    if not isinstance(metric, str) or type(samples) is not int or not 0 < samples <= MAX_EXAMPLES:
        raise ValueError("does not contain a valid metric and number of examples")
    if not (isinstance(digest, str) and len(digest) == _SHA256_DIGITS):
        raise ValueError("does not contain the digest of the test set's labels")
    if len(bits) != (samples + 7) // 8 or (bits[-1] & (1 << (-samples % 8)) - 1):
        raise ValueError(f"does not contain exactly {samples} bits")
    outcomes = ExampleOutcomes(metric, samples, digest, bits)
    if result.metrics.get(metric) != outcomes.mean:
        raise ValueError(
            f"belongs to another result, because its mean differs from {metric} in {run.done.name}"
        )
    return outcomes
