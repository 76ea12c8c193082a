"""Images cropped while they are decoded: neither the ranks nor the processes that decode ahead change a bit."""

import yaml

from cpdrun.record import RunDir, read_json, write_text
from cpdrun.sweep import plan

SMALL = (
    "exp=fcn_bits_small",
    "format=e4m3",
    "aps=true",
    "seed=0",
    "epochs=1",
    "data.train_images=16",
    "data.test_images=4",
    "eval_batch=2",
    "world_size=4",
    "batch_size=2",
    "device=cpu",
)


def test_one_rank_that_decodes_and_two_with_loaders_end_with_the_same_weights(tmp_path, train_here, in_ranks):
    done = []
    for nproc, loaders in ((1, 0), (2, 2)):
        folder = tmp_path / str(nproc)
        typed = [
            *SMALL,
            f"nproc={nproc}",
            f"loaders={loaders}",
            f"data.cache_dir={tmp_path}",
            f"results_dir={folder}",
        ]
        (planned,) = plan(typed).runs
        run = RunDir(folder / planned.name)
        run.path.mkdir(parents=True)
        write_text(run.config, yaml.safe_dump(planned.config))
        if nproc == 1:
            assert train_here(run) == 0
        else:
            ended = in_ranks(run, nproc)
            assert ended.returncode == 0, ended.stderr
        done.append((planned.name, read_json(run.done)))
    (name, here), (other_name, there) = done
    assert name == other_name
    assert here["weights_sha256"] == there["weights_sha256"] and here["metrics"] == there["metrics"]
