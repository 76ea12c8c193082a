"""Verdicts on results that cpdrun did not produce: a table of runs, the candidates in it, and a session of ideas."""
