"""Orders of summation: the longest chain in tables and pictures, advice to change the order, and many facets."""

import xml.etree.ElementTree as ElementTree

import pandas as pd

CHAINS = {"rank": 63, "ring": 63, "hierarchical": 14, "tree": 6}
FORMATS = ["fp32", "e4m3", "e3m2", "e3m1", "e3m0"]
ENOUGH = {"rank": "e4m3", "ring": "e4m3", "hierarchical": "e3m1", "tree": "e3m0"}


def fill(sweep, enough: dict[str, str], *, workers=64, chains=None, seeds=2):
    """Add orders, each with the smallest format that is as good as fp32. Smaller formats do not learn."""
    for order, smallest in enough.items():
        for format in FORMATS:
            trains = FORMATS.index(format) <= FORMATS.index(smallest)
            for seed in range(seeds):
                about = {"test_samples": 10_000, "num_classes": 10, "weights_sha256": f"{format} {seed}"}
                about |= {"longest_chain": chains[order]} if chains else {}
                value = 0.98 + 0.001 * seed + 0.0001 * (seed * len(format) % 3) if trains else 0.1
                config = {
                    "world_size": workers,
                    "sync": {"_target_": "cpdrun.comm.AllReduceSync", "order": order},
                }
                sweep.add(format, aps=format != "fp32", seed=seed, accuracy=value, done=about, **config)
    return sweep


def test_tables_and_a_picture_have_the_longest_chain(new_sweep, report, pictures):
    made = report(fill(new_sweep(), ENOUGH | {"ring": "fp32"}, chains=CHAINS), formats=["md", "csv", "svg"])
    details = pd.read_csv(made.folder / "details.csv")
    assert dict(zip(details["sync.order"], details["longest_chain"], strict=True)) == CHAINS
    lines = (made.folder / "table.md").read_text(encoding="utf-8").splitlines()
    (header,) = [line for line in lines if line.startswith("| format")]
    (row,) = [line for line in lines if line.startswith("| e3m0") and "| tree |" in line]
    assert "| sync.order | chain | n |" in header and "| tree | 6 | 2 |" in row
    assert "longest_chain" not in made.table
    root = ElementTree.parse(made.folder / "fewest_bits_vs_chain.svg").getroot()
    found = sorted(element.text for element in root.iter("{http://www.w3.org/2000/svg}title"))
    assert [text.split(", workers")[0] for text in found] == [
        "chain 14, hierarchical: e3m1 with APS",
        "chain 6, tree: e3m0 with APS",
        "chain 63, rank: e4m3 with APS",
        "chain 63, ring: sync.order ring with APS: refuted",
    ]
    # two seeds leave everything open, which is no reason to change the order
    assert not [line for line in made.answers if "Order of summation" in line]


def test_records_without_chains_give_no_column(new_sweep, report, pictures):
    made = report(fill(new_sweep(), ENOUGH), formats=["md", "svg"])
    assert "chain" not in (made.folder / "table.md").read_text(encoding="utf-8")
    assert "fewest_bits_vs_chain" not in made.printed
    assert not (made.folder / "fewest_bits_vs_chain.svg").exists()


def test_an_order_that_needs_fewer_bits_is_named(new_sweep, report):
    def advice(name, enough):
        made = report(fill(new_sweep(name), enough, chains=CHAINS, seeds=6))
        (line,) = [line for line in made.answers if line.startswith("Order of summation")]
        return line

    assert advice("four", ENOUGH) == (
        "Order of summation, with APS: e3m0 (4 bits) is certified in tree (chain 6), and not enough in hierarchical "
        "(chain 14) (refuted up to 4 bits), rank (chain 63) (refuted up to 6 bits), ring (chain 63) (refuted up to 6 "
        "bits)."
    )
    expected = "certified in tree (chain 6), and not enough in rank (chain 63) (refuted up to 8 bits)."
    assert advice("two", {"rank": "fp32", "tree": "e3m1"}).endswith(expected)


def test_many_facets_are_one_matrix_and_one_sentence(new_sweep, report):
    sweep = new_sweep()
    for workers in (4, 16, 64):
        fill(sweep, {"rank": "e4m3", "hierarchical": "e3m1", "ring": "fp32"}, workers=workers, seeds=8)
    made = report(sweep, formats=["md", "csv", "html"])
    first, *rest = made.answers
    assert first == (
        "CERTIFIED with APS in 6 of 9 combinations of workers and sync.order (e3m1 (5 bits) to e4m3 (8 bits)); "
        "refuted in 3."
    )
    assert len([line for line in rest if line.startswith("Order of summation, workers ")]) == 3
    text = (made.folder / "table.md").read_text(encoding="utf-8")
    assert text.count("| ✓ e3m1 (5 bits)") == 3 and text.count("| ✗ none") == 3
    assert 'id="answers"' in (made.folder / "report.html").read_text(encoding="utf-8")


def test_a_facet_without_a_baseline_has_no_answer(new_sweep, report):
    sweep, sync = new_sweep(), {"_target_": "cpdrun.comm.AllReduceSync", "order": "tree"}
    for workers in (4, 8, 16):
        fill(sweep, {"tree": "e3m0"}, workers=workers)
    for seed in range(2):
        sweep.add(seed=seed, status="diverged", accuracy=0.1, world_size=32, sync=sync)
        sweep.add("e4m3", aps=True, seed=seed, accuracy=0.98, world_size=32, sync=sync)
    made = report(sweep)
    assert made.answers[0] == "OPEN with APS in 3 of 3 combinations of workers (most likely e3m0 (4 bits))."
    assert "No answer in 1 of 4 combinations: fp32 failed or is missing." in made.answers
    assert "fp32 itself diverged in 2 of 2 runs" in made.printed
