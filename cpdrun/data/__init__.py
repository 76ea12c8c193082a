"""Datasets, one per file.

To add a dataset, write a class with the attributes of :class:`cpdrun.data.base.Data` and a yaml file for it in
conf/data/.
"""
