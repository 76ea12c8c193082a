"""Judge the claims of papers, based on the stored values of this repository's runs. `make claims` writes the page."""
