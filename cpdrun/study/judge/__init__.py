"""Judge results that cpdrun did not produce: from a table of runs, or in a session of ideas."""
