"""The verdicts and figures of candidates, as a search and as its report have them."""

from cpdrun.study.reader import read_study


def figures(verdict, found):
    return verdict, found.pairs, *(round(end, 9) for end in (found.mean, found.low, found.high))


def told(results):
    """Return the verdict and the figures of each candidate that has pairs."""
    rows = [row for state in results.states() for row in state]
    return {c.label: figures(width.verdict_of(found), found) for c, found, width in rows if found.pairs}


def reported(results):
    """Return the verdict and the figures of each candidate of the report on a search."""
    study, found = read_study([results.question.directory]), {}
    for facet in study.facets:
        for group in facet.groups:
            if judged := study.judged.get(group):
                facet_label = "" if "format" in facet.keys else facet.label  # the name has the format
                shared = ", ".join(filter(None, [group.strategy, facet_label]))
                found[f"{group.name} {shared}".rstrip()] = figures(judged.verdict, judged.judgment)
    return {label: each for label, each in found.items() if each[1]}
