"""The output of commands in terminals, notebooks and JSON documents."""
