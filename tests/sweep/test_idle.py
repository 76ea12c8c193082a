"""Settings that play no part are told, those that do are not."""

import pytest

from cpdrun.cli import main
from cpdrun.sweep import plan
from cpdrun.sweep.idle import idle_settings


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["compressor=qsgd"], ["compressor plays no part: AllReduceSync takes none, as sync=compressed"]),
        (["topology.mixing=metropolis"], ["topology.mixing plays no part: AllReduceSync takes none"]),
        (["norm=evonorm_s0"], ["norm plays no part: ConvNet takes none, as model=normed_convnet would"]),
        (["norm=evonorm_s0", "model=convnet,normed_convnet"], []),
        (["compressor=top_k", "compressor.keep=0.1", "topology=torus", "sync=gossip_dpsgd"], []),
        (["compressor=top_k", "sync=gossip_dpsgd,all_reduce"], []),
        (["compressor=top_k", "sync=compressed"], []),
        (["scaling=aps", "aps=false"], ["scaling plays no part with aps=false"]),
        (["scaling=aps", "aps=true,false"], []),
        (["epochs=1"], []),
    ],
)
def test_what_plays_no_part_in_any_run_is_told(typed, told):
    configs = [
        run.config for run in plan(["exp=digits_bits", "format=e4m3", "seed=0", "name=x", *typed]).runs
    ]
    found = list(idle_settings(typed, configs))
    assert len(found) == len(told)
    for line, beginning in zip(found, told, strict=True):
        assert line.startswith(beginning)


def test_the_line_comes_before_anything_starts(tmp_path, capsys):
    words = ["sweep", "exp=digits_bits", "compressor=qsgd", f"results_dir={tmp_path}", "--dry-run"]
    assert main(words) == 0
    assert "note: compressor plays no part" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
