"""Number formats. The modules of this package do not import torch."""
