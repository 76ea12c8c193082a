"""Judge what papers claim, from the stored values of this repository's runs. `make claims` writes the page."""
