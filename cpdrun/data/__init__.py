"""Datasets, one a file. A new one is a class like :class:`cpdrun.data.base.Data` and a yaml in conf/data/."""
