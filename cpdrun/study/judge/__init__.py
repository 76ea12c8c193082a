"""Judge results that cpdrun did not produce: read a table of runs, judge its candidates, keep a session of ideas."""
