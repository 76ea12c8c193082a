"""Models, one architecture a file. A new one is a class here or anywhere, and a yaml in conf/model/."""
