"""The recipes, as yaml files in the folder `recipe`. cpdrun composes them with Hydra."""
