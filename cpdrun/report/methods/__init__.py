"""Ways of exchanging side by side: which sends least for the same result, which is predicted to be fastest where."""
