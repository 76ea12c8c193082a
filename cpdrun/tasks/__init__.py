"""The contract of model, data and task: what cpdrun asks of classes, its own and yours alike.

A run has one of each, named in its configuration (`model._target_=package.module.Class` ...). None is registered, and
only a task has a base class.

DATA  has two attributes that are asked for,
    train     a dataset of torch: numbered samples (__len__, __getitem__), or an IterableDataset
    test      the same, finite
and others that it may have:
    augment(inputs, generator)   a training batch's inputs changed at random, drawing from `generator` alone; new
                                 tensors. Of a batch that is a mapping it is given all
    path, sha256                 the file or folder it was read from; a digest of what it holds: the record tells one
                                 data from another by them
    anything else                facts that a model or a task may ask for. Ours state num_classes, in_channels,
                                 image_size (pixels of a side), context, vocab_size, bytes_per_token
A sample is (inputs, targets), or a mapping whose targets are under `labels`. Inputs and targets are numbers, tensors,
or tuples, lists and dicts of them; torch's default_collate makes batches of them. A dataset may have
    fetch_batch(indices)                  a whole batch at once
    fetch_augmented(indices, generator)   the same for training, changed at random while it is decoded
    y_N                                   all targets, for a partition by classes to look at without reading samples
    set_epoch(n)                          of an IterableDataset: called before its pass n, counted from 0
An IterableDataset's samples are dealt as they come; where it has no __len__, max_steps must be given.

MODEL  is an nn.Module that knows its shapes before a first batch. Arguments of its class that its yaml does not set
are taken from the data's facts of that name. It is called with the inputs: a tuple's in order, a mapping's entries by
name; so a model of Hugging Face's, called with input_ids=..., labels=..., needs no wrapper. It gives what its task
compares: a tensor, or an object or mapping with `logits`.

TASK  says what is learnt: how the model is called, the loss, the metrics (`cpdrun.tasks.base.Task`). A data set's yaml
chooses one,

    defaults:
      - override /task@_global_.task: regression

or else it is classification; `task=NAME` chooses another. Each metric says which way is better and how it is shown
(`cpdrun.record.measure.Measure`), and the record carries it.
"""
