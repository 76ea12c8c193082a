"""What the training loop cannot do without in a dataset, and in a model that is built before a first batch."""

from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils.data import IterableDataset

from cpdrun.optim.groups import trainable

SPLITS = ("train", "test")


def unfit_data(data: Any) -> str | None:
    """What keeps `data` from being trained on, in a line; None where nothing does. Looks at no sample."""
    name = type(data).__name__
    for split in SPLITS:
        dataset = getattr(data, split, None)
        if dataset is None:
            return (
                f"{name} has no {split}: a class of data has train and test, as cpdrun/tasks/__init__.py says"
            )
        if isinstance(dataset, IterableDataset):
            continue
        if not hasattr(dataset, "__getitem__"):
            return (
                f"{split} of {name} is a {type(dataset).__name__} without numbered samples: it needs __len__ and "
                "__getitem__, or to be an IterableDataset"
            )
        try:
            size = len(dataset)
        except (TypeError, NotImplementedError):
            return f"{split} of {name} has no length: its class needs __len__ beside __getitem__"
        if size == 0:
            return f"{split} of {name} is empty"
    return None


def unfit_model(model: nn.Module) -> str | None:
    """What keeps `model` from being trained, in a line; None where nothing does."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedTensorMixin):
            return (
                f"{name} has no shape before a first batch (a lazy layer): initial weights depend on the seed alone, "
                "so give the layer its sizes"
            )
    if not trainable(model):
        return f"{type(model).__name__} has no parameters that require a gradient: there is nothing to train"
    return None
