"""The display of the progress and the logs of runs, for `cpdrun sweep`, `cpdrun status`, and `cpdrun logs`."""
