"""Models, one architecture per file.

To add a model, write a class, here or in any package, and a yaml file for it in conf/model/.
"""
