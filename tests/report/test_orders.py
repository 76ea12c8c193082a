"""Orders of summation: the chain's length in the table, the picture against it, and when to reorder; many facets."""

import xml.etree.ElementTree as ElementTree

import pandas as pd

CHAINS = {"rank": 63, "ring": 63, "hierarchical": 14, "tree": 6}


def fill(
    sweep, enough: dict[str, str], workers: int = 64, chains: dict[str, int] | None = None, seeds: int = 2
) -> None:
    """Add orders, each with the smallest format that does as well as fp32; the smaller ones do not learn."""
    formats = ["fp32", "e4m3", "e3m2", "e3m1", "e3m0"]
    for order, smallest in enough.items():
        for format in formats:
            for seed in range(seeds):
                trains = smallest in formats[formats.index(format) :]
                about = {"test_samples": 10_000, "num_classes": 10, "weights_sha256": f"{format} {seed}"}
                if chains is not None:
                    about["longest_chain"] = chains[order]
                sweep.add(
                    format,
                    aps=format != "fp32",
                    seed=seed,
                    accuracy=0.98 + 0.001 * seed + 0.0001 * (seed * len(format) % 3) if trains else 0.1,
                    world_size=workers,
                    done=about,
                    sync={"_target_": "cpdrun.comm.AllReduceSync", "order": order},
                )


ENOUGH = {"rank": "e4m3", "ring": "e4m3", "hierarchical": "e3m1", "tree": "e3m0"}


def test_the_chain_is_in_the_table_and_in_details(new_sweep, report, no_pictures):
    sweep = new_sweep()
    fill(sweep, ENOUGH, chains=CHAINS)
    made = report(sweep)
    details = pd.read_csv(made.folder / "details.csv")
    assert dict(zip(details["sync.order"], details["longest_chain"], strict=True)) == CHAINS
    lines = (made.folder / "table.md").read_text(encoding="utf-8").splitlines()
    (header,) = [line for line in lines if line.startswith("| format")]
    (row,) = [line for line in lines if line.startswith("| e3m0") and "| tree |" in line]
    assert "| sync.order | chain | n |" in header and "| tree | 6 | 2 |" in row
    assert list(made.table.columns) == [
        "format", "bits", "aps", "world_size", "sync.order",
        "n", "test_accuracy_mean", "test_accuracy_sd", "diverged",
    ]  # fmt: skip


def test_without_chains_in_the_records_there_is_no_column(new_sweep, report):
    sweep = new_sweep()
    fill(sweep, ENOUGH)
    made = report(sweep, formats=["md", "svg"])
    assert "chain" not in (made.folder / "table.md").read_text(encoding="utf-8")
    assert "fewest_bits_vs_chain" not in made.printed
    assert not (made.folder / "fewest_bits_vs_chain.svg").exists()


def test_an_order_that_is_certified_with_bits_that_another_cannot_use_is_named(
    new_sweep, report, no_pictures
):
    sweep = new_sweep()
    fill(sweep, ENOUGH, chains=CHAINS, seeds=6)
    reorder = [line for line in report(sweep).answers if line.startswith("Order of summation")]
    assert reorder == [
        "Order of summation, with APS: e3m0 (4 bits) is certified in tree (chain 6), and not enough in hierarchical "
        "(chain 14) (refuted up to 4 bits), rank (chain 63) (refuted up to 6 bits), ring (chain 63) (refuted up to 6 "
        "bits)."
    ]


def test_a_format_that_no_order_but_one_trains_is_a_reason_to_reorder(new_sweep, report, no_pictures):
    sweep = new_sweep()
    fill(sweep, {"rank": "fp32", "tree": "e3m1"}, chains=CHAINS, seeds=6)
    (line,) = [line for line in report(sweep).answers if line.startswith("Order of summation")]
    assert line.endswith(
        "certified in tree (chain 6), and not enough in rank (chain 63) (refuted up to 8 bits)."
    )


def test_what_is_open_is_no_reason_to_reorder(new_sweep, report, no_pictures):
    sweep = new_sweep()
    fill(sweep, {"rank": "e3m1", "tree": "e3m0"}, chains=CHAINS)
    assert not [line for line in report(sweep).answers if "Order of summation" in line]


def test_fewest_bits_against_the_chain(new_sweep, report):
    sweep = new_sweep()
    fill(sweep, ENOUGH | {"ring": "fp32"}, chains=CHAINS)
    made = report(sweep, formats=["svg"])
    root = ElementTree.parse(made.folder / "fewest_bits_vs_chain.svg").getroot()
    found = sorted(element.text for element in root.iter("{http://www.w3.org/2000/svg}title"))
    assert [text.split(", workers")[0] for text in found] == [
        "chain 14, hierarchical: e3m1 with APS",
        "chain 6, tree: e3m0 with APS",
        "chain 63, rank: e4m3 with APS",
        "chain 63, ring: sync.order ring with APS: refuted",
    ]


def test_many_facets_are_one_matrix_and_one_sentence(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for workers in (4, 16, 64):
        fill(sweep, ENOUGH | {"ring": "fp32"}, workers=workers, seeds=8)
    made = report(sweep, formats=["md", "csv", "html"])
    first, *rest = made.answers
    assert first == (
        "CERTIFIED with APS in 9 of 12 combinations of workers and sync.order (e3m0 (4 bits) to e4m3 (8 bits)); "
        "refuted in 3."
    )
    assert len([line for line in rest if line.startswith("Order of summation, workers ")]) == 3
    text = (made.folder / "table.md").read_text(encoding="utf-8")
    assert text.count("| ✓ e3m1 (5 bits)") == 3 and text.count("| ✗ none") == 3
    assert 'id="answers"' in (made.folder / "report.html").read_text(encoding="utf-8")


def test_a_facet_without_a_baseline_says_so_in_its_row(new_sweep, report, no_pictures):
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
