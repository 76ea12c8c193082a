"""Number formats, without torch."""
