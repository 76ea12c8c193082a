"""The names of classes that have moved.

A config may name a class by a former name. The hash of a run contains the first name of each class, so a run keeps its
name when a class moves.
"""

from collections.abc import Mapping
from typing import Any

# The original name of each class that was moved to another module, keyed by its present name.
FIRST_NAME = {
    "cpdrun.comm.compressors.min_max.MinMax": "cpdrun.comm.compress.MinMax",
    "cpdrun.comm.compressors.qsgd.QSGD": "cpdrun.comm.qsgd.QSGD",
    "cpdrun.comm.compressors.random_k.RandomK": "cpdrun.comm.randk.RandomK",
    "cpdrun.comm.compressors.rounded_values.Rounded": "cpdrun.comm.compress.Rounded",
    "cpdrun.comm.compressors.top_k.TopK": "cpdrun.comm.topk.TopK",
    "cpdrun.comm.gossip.algorithms.Choco": "cpdrun.comm.choco.Choco",
    "cpdrun.comm.gossip.algorithms.DeepSqueeze": "cpdrun.comm.deep_squeeze.DeepSqueeze",
    "cpdrun.comm.gossip.algorithms.DPSGD": "cpdrun.comm.gossip.DPSGD",
    "cpdrun.comm.gossip.algorithms.PushSum": "cpdrun.comm.push_sum.PushSum",
    "cpdrun.comm.gossip.topologies.Complete": "cpdrun.comm.topology.Complete",
    "cpdrun.comm.gossip.topologies.Exponential": "cpdrun.comm.topology.Exponential",
    "cpdrun.comm.gossip.topologies.Hub": "cpdrun.comm.topology.Hub",
    "cpdrun.comm.gossip.topologies.Arrows": "cpdrun.comm.topology.Arrows",
    "cpdrun.comm.gossip.topologies.Links": "cpdrun.comm.topology.Links",
    "cpdrun.comm.gossip.topologies.OnePeerExponential": "cpdrun.comm.changing.OnePeerExponential",
    "cpdrun.comm.gossip.topologies.RandomPairs": "cpdrun.comm.changing.RandomPairs",
    "cpdrun.comm.gossip.topologies.Ring": "cpdrun.comm.topology.Ring",
    "cpdrun.comm.gossip.topologies.Torus": "cpdrun.comm.topology.Torus",
    "cpdrun.comm.sums.scaling.APS": "cpdrun.comm.scaling.APS",
    "cpdrun.comm.sums.scaling.DelayedAPS": "cpdrun.comm.scaling.DelayedAPS",
    "cpdrun.comm.sync.compressed_sync.CompressedSync": "cpdrun.comm.compressed_sync.CompressedSync",
    "cpdrun.comm.sync.decoded": "cpdrun.comm.requantised_sync.RequantisedSync",
    "cpdrun.comm.sync.local.LocalSync": "cpdrun.comm.local_sync.LocalSync",
    "cpdrun.comm.sync.power_sgd.PowerSGDSync": "cpdrun.comm.power_sgd_sync.PowerSGDSync",
    "cpdrun.comm.sync.sharded_sync.ShardedSync": "cpdrun.comm.sharded.sync.ShardedSync",
    "cpdrun.data.images.cifar10.CIFAR10": "cpdrun.data.cifar10.CIFAR10",
    "cpdrun.data.images.cifar100.CIFAR100": "cpdrun.data.cifar100.CIFAR100",
    "cpdrun.data.images.cityscapes.Cityscapes": "cpdrun.data.cityscapes.Cityscapes",
    "cpdrun.data.images.digits.Digits": "cpdrun.data.digits.Digits",
    "cpdrun.data.images.fashion_folder.FashionFolder": "cpdrun.data.fashion_folder.FashionFolder",
    "cpdrun.data.images.fashion_mnist.FashionMNIST": "cpdrun.data.fashion_mnist.FashionMNIST",
    "cpdrun.data.images.image_folder.ImageFolders": "cpdrun.data.image_folder.ImageFolders",
    "cpdrun.data.images.imagenette.Imagenette": "cpdrun.data.imagenette.Imagenette",
    "cpdrun.data.images.street_scenes.StreetScenes": "cpdrun.data.street_scenes.StreetScenes",
    "cpdrun.data.partition.Dirichlet": "cpdrun.data.skew.Dirichlet",
    "cpdrun.data.partition.Iid": "cpdrun.data.skew.Iid",
    "cpdrun.data.partition.Skewed": "cpdrun.data.skew.Skewed",
    "cpdrun.models.normed.convnet.NormedConvNet": "cpdrun.models.normed_convnet.NormedConvNet",
    "cpdrun.models.normed.mlp_bn.MLPBatchNorm": "cpdrun.models.mlp_bn.MLPBatchNorm",
    "cpdrun.models.normed.norms.BatchNorm": "cpdrun.models.norms.BatchNorm",
    "cpdrun.models.normed.norms.EvoNormS0": "cpdrun.models.norms.EvoNormS0",
    "cpdrun.models.normed.norms.RangeBN": "cpdrun.models.norms.RangeBN",
    "cpdrun.models.normed.norms.RangeEvoNorm": "cpdrun.models.norms.RangeEvoNorm",
    "cpdrun.models.normed.resnet.NormedResNet": "cpdrun.models.normed_resnet.NormedResNet",
    "cpdrun.models.normed.vgg.NormedVGG11": "cpdrun.models.normed_vgg.NormedVGG11",
    "cpdrun.models.parallel.parallel_convnet.ParallelConvNet": "cpdrun.comm.parallel_conv.ParallelConvNet",
    "cpdrun.models.parallel.mlp.ParallelMLP": "cpdrun.comm.parallel_linear.ParallelMLP",
    "cpdrun.train.precision.int8.Int8": "cpdrun.train.int8.Int8",
    "cpdrun.train.precision.run_formats.Formats": "cpdrun.train.precision.Precision",
}
# The present name, keyed by the names that were used after the first one.
FORMER_NAME = {
    "cpdrun.comm.compressors.rounded.Rounded": "cpdrun.comm.compressors.rounded_values.Rounded",
    "cpdrun.comm.gossip.choco.Choco": "cpdrun.comm.gossip.algorithms.Choco",
    "cpdrun.comm.gossip.deep_squeeze.DeepSqueeze": "cpdrun.comm.gossip.algorithms.DeepSqueeze",
    "cpdrun.comm.gossip.dpsgd.DPSGD": "cpdrun.comm.gossip.algorithms.DPSGD",
    "cpdrun.comm.gossip.push_sum.PushSum": "cpdrun.comm.gossip.algorithms.PushSum",
    "cpdrun.comm.gossip.topology.complete.Complete": "cpdrun.comm.gossip.topologies.Complete",
    "cpdrun.comm.gossip.topology.exponential.Exponential": "cpdrun.comm.gossip.topologies.Exponential",
    "cpdrun.comm.gossip.topology.hub.Hub": "cpdrun.comm.gossip.topologies.Hub",
    "cpdrun.comm.gossip.topology.links.Arrows": "cpdrun.comm.gossip.topologies.Arrows",
    "cpdrun.comm.gossip.topology.links.Links": "cpdrun.comm.gossip.topologies.Links",
    "cpdrun.comm.gossip.topology.one_peer_exponential.OnePeerExponential": (
        "cpdrun.comm.gossip.topologies.OnePeerExponential"
    ),
    "cpdrun.comm.gossip.topology.random_pairs.RandomPairs": "cpdrun.comm.gossip.topologies.RandomPairs",
    "cpdrun.comm.gossip.topology.ring.Ring": "cpdrun.comm.gossip.topologies.Ring",
    "cpdrun.comm.gossip.topology.torus.Torus": "cpdrun.comm.gossip.topologies.Torus",
    "cpdrun.comm.sync.compressed.CompressedSync": "cpdrun.comm.sync.compressed_sync.CompressedSync",
    "cpdrun.comm.sync.sharded.ShardedSync": "cpdrun.comm.sync.sharded_sync.ShardedSync",
    "cpdrun.models.parallel.convnet.ParallelConvNet": (
        "cpdrun.models.parallel.parallel_convnet.ParallelConvNet"
    ),
    "cpdrun.train.precision.formats.Formats": "cpdrun.train.precision.run_formats.Formats",
}
PRESENT_NAME = {first: now for now, first in FIRST_NAME.items()} | FORMER_NAME
FIRST_NAME |= {former: FIRST_NAME[now] for former, now in FORMER_NAME.items()}

CLASSIFICATION = "cpdrun.tasks.classification.Classification"
# The task that versions without the section `task` used for each dataset class. For all other classes, it was
# CLASSIFICATION. If the task of a run is the task listed here, it is not included in the run's hash.
FIRST_TASK = {
    "cpdrun.data.images.cifar100.CIFAR100": "cpdrun.tasks.top5.Top5",
    "cpdrun.data.images.cityscapes.Cityscapes": "cpdrun.tasks.segmentation.Segmentation",
    "cpdrun.data.images.fashion_folder.FashionFolder": "cpdrun.tasks.top5.Top5",
    "cpdrun.data.images.image_folder.ImageFolders": "cpdrun.tasks.top5.Top5",
    "cpdrun.data.images.imagenette.Imagenette": "cpdrun.tasks.top5.Top5",
    "cpdrun.data.images.street_scenes.StreetScenes": "cpdrun.tasks.segmentation.Segmentation",
    "cpdrun.data.text.PydocText": "cpdrun.tasks.next_token.NextToken",
}


def with_present_names(value: Any) -> Any:
    """Return a section of a config in which classes that have moved have their present names."""
    if isinstance(value, Mapping):
        return {
            key: PRESENT_NAME.get(inner, inner)
            if key == "_target_" and isinstance(inner, str)
            else with_present_names(inner)
            for key, inner in value.items()
        }
    return [with_present_names(inner) for inner in value] if isinstance(value, list) else value


def as_now(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config of any version, keyed by dotted key, as the present version writes them.

    Classes get their present names. A config without a task gets the task of its data.
    """
    now = {
        key: PRESENT_NAME.get(value, value) if key.endswith("_target_") else value
        for key, value in flat.items()
    }
    data = now.get("data._target_")
    return now if data is None else {"task._target_": FIRST_TASK.get(data, CLASSIFICATION)} | now
