"""Judge results that cpdrun did not produce, from a table or in a session of ideas."""
