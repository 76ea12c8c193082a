"""One file a command: what may be typed for it (`add`), and what it does (`run`, where imports of weight stand)."""
