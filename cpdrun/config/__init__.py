"""Settings: their types, their composition from conf/, the runs of a sweep, and the identity of a run.

From the command line to runs:

    overrides         Parses the command line, and reads and writes dotted keys.
    compose           Composes a config from conf/ with Hydra.
    short_forms       Expands recipe=NAME and aps=true.
    schema            Checks a config by the typed model of the settings.
    request           Reads the axes, cases, and exclusions that the user asks for.
    plan              Combines the axes into runs.
    identity          Names a run by the content of its config.
    manifest          Records the runs in sweep.yaml.
    run_states        Finds the runs that are done, changed, or unreadable.
    ignored_settings  Finds settings without effect.
    shared_config     Describes the settings of the runs.
    dry_run           Prints the description of a sweep before it starts.

Planning writes nothing, and trains nothing.
"""
