"""The sentences of reports on several sweeps, compared with the files in snapshots/."""

import yaml

from cpdrun.record import write_json, write_text
from cpdrun.report.answers_text import cost_sentences, counts, headline, method_sentences, notes
from cpdrun.study.completeness import completeness
from cpdrun.study.reader import read_study

ABOUT = {"test_samples": 10_000, "num_classes": 10}
EXACT = {("fp32", False): 0.99, ("e4m1", False): 0.988, ("e3m0", False): 0.1, ("e3m0", True): 0.987}


def settled(sweep):
    """One ladder is certified, and the other is certified in 6 bits and refuted in 4."""
    for (format, aps), value in EXACT.items():
        for seed in range(3):
            sweep.add(format, aps=aps, seed=seed, accuracy=value + 0.001 * seed, done=ABOUT)


def refuted(sweep):
    """A format is worse in every seed, and with APS a run diverged."""
    for seed in range(4):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed, done=ABOUT)
        sweep.add("e4m3", seed=seed, accuracy=0.9 + 0.001 * seed, done=ABOUT)
        sweep.add("e3m0", seed=seed, accuracy=0.5 + 0.001 * seed, done=ABOUT)
        status = "diverged" if seed == 1 else "finished"
        sweep.add("e3m0", aps=True, seed=seed, accuracy=0.98, status=status, done=ABOUT)


GAPS = {
    8: (0.002, -0.002, 0.0),
    16: (-0.02, -0.002, -0.014),
    32: (0.02, -0.035, 0.0),
}  # number of workers -> of each seed


def undecided(sweep, gaps=GAPS):
    """Three ladders: within the margin, beyond it, and too near for a small test set."""
    few = {"test_samples": 100, "num_classes": 10}
    for workers, of_seed in gaps.items():
        for seed, gap in enumerate(of_seed):
            about = few if workers == 32 else ABOUT
            sweep.add(seed=seed, world_size=workers, accuracy=0.97, done=about)
            sweep.add("e3m0", seed=seed, world_size=workers, accuracy=0.97 + gap, done=about)


def undecided_in_a_table(sweep):
    """More open ladders than the first lines describe one by one. They are listed in a table."""
    undecided(sweep, GAPS | {64: (-0.08, 0.01, -0.03)})


def identical(sweep):
    """The candidate rounds nothing: its weights are those of the baseline."""
    for seed in range(3):
        for format in ("fp32", "e4m3"):
            done = ABOUT | {"weights_sha256": f"weights {seed}"}
            sweep.add(format, seed=seed, accuracy=0.98 + seed / 1000, done=done)


def cases(sweep):
    """Named cases in place of formats."""
    for case, accuracy in {"fp32": 0.9, "pure": 0.88, "Kahan": 0.8999, "half": 0.896}.items():
        for seed in range(3):
            value = accuracy + 0.0001 * seed + (0.003 * (seed - 1) if case == "half" else 0)
            sweep.add("fp16" if case != "fp32" else case, seed=seed, accuracy=value, done=ABOUT, case=case)


def orders(sweep):
    """Eight facets: orders of summation and numbers of workers; ring needs more bits than tree."""
    for workers in (4, 16):
        for order in ("tree", "ring"):
            for seed in range(8):
                sync = {"_target_": "cpdrun.comm.AllReduceSync", "order": order}
                common = {"seed": seed, "world_size": workers, "sync": sync, "done": ABOUT}
                sweep.add(accuracy=0.98 + 0.0002 * (seed % 3), **common)
                sweep.add("e4m3", aps=True, accuracy=0.98 + 0.0003 * (seed % 2), **common)
                worse = 0.1 if order == "ring" else 0
                sweep.add("e3m0", aps=True, accuracy=0.98 - worse + 0.0003 * (seed % 2), **common)


def without_baseline(sweep):
    sweep.add("e4m3", aps=True, accuracy=0.97)


def diverged_baseline(sweep):
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.1, status="diverged")
        sweep.add("e4m3", seed=seed, accuracy=0.97)


def unknown_direction_and_mixed_code(sweep):
    for seed in range(2):
        env = {"code": {"mine": {"file": "/x/mine.py", "sha256": f"{seed}"}}, "code_sha256": f"{seed}"}
        for format, value in (("fp32", 12.0), ("e4m3", 12.1)):
            done = {"judged_by": "val_score", "metrics": {"val_score": value}}
            rows = [{"epoch": 1, "val_score": 1.0}, {"epoch": 2, "val_score": value}]
            sweep.add(format, seed=seed, metrics={"val_score": value}, done=done, env=env, rows=rows)


def unlearned(sweep, about=ABOUT):
    """The baseline is as good as a guess."""
    for format in ("fp32", "e3m0"):
        for seed in range(3):
            sweep.add(format, seed=seed, accuracy=0.1 + 0.01 * seed, done=about)


def unlearned_of_unknown_classes(sweep):
    unlearned(sweep, {"test_samples": 360})


def learned_of_a_thousand_classes(sweep):
    for format in ("fp32", "e3m0"):
        for seed in range(3):
            value = 0.08 + 0.001 * seed + 0.0001 * (format == "e3m0")
            sweep.add(format, seed=seed, accuracy=value, done={"test_samples": 50_000, "num_classes": 1000})


def equal_on_few_samples(sweep):
    """No answer of 40 differs, and yet one in ten may."""
    for format in ("fp32", "e3m0"):
        for seed in range(3):
            sweep.add(format, seed=seed, accuracy=0.95, done={"test_samples": 40, "num_classes": 10})


def single_seed(sweep):
    sweep.add(accuracy=0.98, done=ABOUT)
    sweep.add("e3m0", aps=True, accuracy=0.979, done=ABOUT)


def baseline_without_values(sweep):
    sweep.add(accuracy=None)
    sweep.add("e4m3", accuracy=0.98)


def no_values(sweep):
    sweep.add("e4m3", metrics={"test_accuracy": None})


SWEEPS = (settled, refuted, undecided, undecided_in_a_table, identical, cases, orders, without_baseline,
          diverged_baseline, unknown_direction_and_mixed_code, unlearned, unlearned_of_unknown_classes,
          learned_of_a_thousand_classes, equal_on_few_samples, single_seed, baseline_without_values,
          no_values)  # fmt: skip


def test_the_first_lines_of_a_report(new_sweep, snapshot):
    parts = []
    for fill in SWEEPS:
        sweep = new_sweep(fill.__name__)
        fill(sweep)
        study = read_study([sweep.dir], tolerance=1 if fill is identical else None)
        lines, matrix = headline(study, "cpdrun search exp=digits" if fill is undecided else "")
        parts += [f"## {fill.__name__}", *lines, *counts(study)]
        parts += [] if matrix is None else [" | ".join(row) for row in (matrix.header, *matrix.rows)]
        parts.append("")
    small = new_sweep("margin")
    settled(small)
    parts += ["## a margin that is too wide", *headline(read_study([small.dir], tolerance=60))[0]]
    snapshot("headline", "\n".join(parts) + "\n")


def test_the_notes_of_a_report(new_sweep, snapshot):
    """A sweep in which much is missing, odd or mixed. A frequent error is printed once."""
    sweep, env = new_sweep(), {"torch": "2.9.0", "device": "Xeon", "cpu": "Xeon", "cpu_vector": "avx2"}
    for seed in range(4):
        other = {"torch": "2.10.0", "cpu_vector": "avx512f"} if seed == 3 else {}
        sweep.add(seed=seed, accuracy=0.98, env=env | other, name=f"fp32-{seed}")
        accuracy = 97.0 if seed == 2 else 0.97
        sweep.add("e4m3", seed=seed, accuracy=accuracy, env=env, name=f"e4m3-{seed}")
        sweep.add("e3m0", seed=seed, status=None, outcome="failed", name=f"e3m0-{seed}")
    sweep.add("e4m3", seed=0, accuracy=0.5, env=env, name="repeated")
    sweep.add("e3m2", seed=0, status=None, name="pending")
    sweep.add("e5m2", seed=0, name="unreadable").done.write_text("[]")
    planned = [run.name for run in sweep.dir.runs()] + ["never-started"]
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": planned}))
    snapshot("notes", "\n".join(notes(read_study([sweep.dir]), [sweep.dir])) + "\n")


def test_missing_seeds_of_any_type_are_listed(new_sweep):
    sweep = new_sweep()
    for seed in (0, 10, 9, "a", "b", 2.5):
        sweep.add(seed=seed, accuracy=0.98)
    sweep.add("e4m3", seed=0, accuracy=0.98)
    (line,) = [line for line in notes(read_study([sweep.dir]), [sweep.dir]) if "lacks" in line]
    assert "e4m3 without APS lacks seeds 2.5, 9, 10, a, b." in line


def test_errors_are_grouped(new_sweep):
    sweep = new_sweep()
    sweep.add(accuracy=0.98)
    for seed in range(3):
        run = sweep.add("e3m0", seed=seed, status=None, outcome="failed", name=f"broken-{seed}")
        if seed == 2:
            write_json(
                run.last_attempt().exit, {"outcome": "failed", "exit_code": 1, "reason": "out of memory"}
            )
    found = completeness(read_study([sweep.dir]), [sweep.dir])
    assert found.errors == {"it fell over": ["broken-0", "broken-1"], "out of memory": ["broken-2"]}
    assert (found.progress.done, found.progress.total, found.progress.others) == (1, 4, {"failed": 3})


def test_the_sentences_about_costs_and_methods(new_sweep, snapshot):
    """Clear means have a knee, noisy means have none, and named cases have the method with the fewest bits."""
    points = (("fp32", 0.981, 400), ("e4m3", 0.9805, 100), ("e3m2", 0.97, 80), ("e3m0", 0.9, 50))
    parts = []
    for name, noise in (("clear", 0.0001), ("noisy", 0.05)):
        sweep = new_sweep(name)
        for format, accuracy, sent in points:
            for seed in range(4):
                value = accuracy + noise * ((3 * seed + sent // 10) % 4)
                sweep.add(format, seed=seed, accuracy=value, wire_bytes=sent, done=ABOUT)
        study = read_study([sweep.dir])
        parts += [f"## {name}", *cost_sentences(study, ["bytes", "area"]), ""]
    sweep = new_sweep("methods")
    for case, (accuracy, sent) in {"fp32": (0.9, 400), "2 bits": (0.8999, 25), "top-k": (0.89, 10)}.items():
        for seed in range(4):
            value = accuracy + 0.0001 * seed + (0.02 * (seed - 1.5) if case == "top-k" else 0)
            about = ABOUT | {"parameters": 100}
            sweep.add(seed=seed, accuracy=value, wire_bytes=sent, world_size=2, case=case, done=about)
    parts += ["## methods", *method_sentences(read_study([sweep.dir]))]
    snapshot("costs", "\n".join(parts) + "\n")
