"""The interface between the commands and the user's terminal or notebook."""
