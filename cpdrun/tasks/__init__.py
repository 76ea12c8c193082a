"""What cpdrun requires of the model, the data and the task of a run. The same holds for built-in classes and your own.

The configuration names each of the three by its class (`model._target_=package.module.Class`, for example). Classes
need no registration, and only a task needs a base class.

DATA is an object with two required attributes:
    train     A dataset of torch: map-style (with __len__ and __getitem__) or an IterableDataset.
    test      The same, of finite length.
and with optional attributes:
    augment(inputs, generator)   Returns the inputs of a training batch with random changes, as new tensors. It draws
                                 random numbers from `generator` only. If the batch is a mapping, it receives the whole
                                 batch.
    path, sha256                 The file or folder that contains the data, and a digest of its contents. The run record
                                 uses them to identify the data.
    label_names                  The names of the classes, in the order of their numbers, for the run record.
    anything else                Facts that a model or a task may use as arguments. The built-in datasets have
                                 num_classes, in_channels, image_size (height and width in pixels), context, vocab_size
                                 and bytes_per_token.

A sample is (inputs, targets), or a mapping with the targets under the key `labels`. Inputs and targets are numbers,
tensors, or tuples, lists and dicts of them. The function default_collate of torch combines samples into batches. A
dataset may have:
    fetch_batch(indices)                  Returns a whole batch at once.
    fetch_augmented(indices, generator)   The same for a training batch, with random changes made during decoding.
    stack_batches(batches)                Returns the batches of several workers as one batch, whose first dimension is
                                          that of the workers. With emulation=batched or chunked, a dataset needs it if
                                          its batches have different shapes.
    y_N                                   All targets, from which a partition by classes reads the classes without
                                          reading samples.
    set_epoch(n)                          For an IterableDataset: called before pass n over the data, counted from 0.
The samples of an IterableDataset are used in the order in which they come. If it has no __len__, the run needs
max_steps.

MODEL is an nn.Module whose parameters have their shapes before the first batch. If the yaml file does not set an
argument of the class, and the data has a fact of the same name, the fact is passed. The model is called with the
inputs: a tuple is passed as positional arguments and a mapping as keyword arguments. So a Hugging Face model that is
called with input_ids=..., labels=... needs no wrapper. It returns what the task needs: a tensor, or an object or
mapping with `logits`.

TASK defines what is learned: how the model is called, the loss and the metrics (`cpdrun.tasks.base.Task`). The yaml
file of a dataset can choose a task:

    defaults:
      - override /task@_global_.task: regression

Otherwise, the task is classification. `task=NAME` chooses another. Each metric has a `cpdrun.record.measure.Measure`,
which says whether higher or lower is better and how the metric is displayed. The run record contains it.
"""
