"""Which runs are missing from the numbers of a study, and why its runs may not be comparable."""

from cpdrun.study.collect import CODE, DATA, finished
from cpdrun.study.study import Study


def mixed_code(study: Study) -> list[str]:
    """Return the code that differs between the finished runs, and "data" if the same data settings gave other data.

    A difference between such runs need not come from their formats.
    """
    done = finished(study.runs)
    mixed = [c.removeprefix(CODE) for c in done.columns if c.startswith(CODE) and done[c].nunique() > 1]
    settings = [c for c in done.columns if c.startswith("data.") and not c.endswith("_dir")]
    if DATA not in done.columns:
        return mixed
    same_settings = done["run:state"]
    if settings:
        same_settings = done[settings].apply(lambda row: " ".join(map(str, row)), axis=1)
    is_mixed = (done.groupby(same_settings)[DATA].nunique() > 1).any()
    return [*mixed, "data"] if is_mixed else mixed
