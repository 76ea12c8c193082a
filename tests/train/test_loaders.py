"""Images are decoded and cropped to the same bits by ranks and by loader processes."""

import yaml

from cpdrun.record import RunDir, read_json, write_text
from cpdrun.sweep import plan

SMALL = (
    *("exp=fcn_bits_small", "format=e4m3", "aps=true", "seed=0", "epochs=1", "device=cpu", "eval_batch=2"),
    *("data.train_images=8", "data.test_images=4", "world_size=2", "batch_size=2"),
)


def test_loaders_do_not_change_the_weights(tmp_path, train_here, in_ranks):
    done = []
    for nproc, loaders in ((1, 0), (2, 2)):
        folder = tmp_path / str(nproc)
        here = [f"data.cache_dir={tmp_path}", f"results_dir={folder}"]
        (planned,) = plan([*SMALL, f"nproc={nproc}", f"loaders={loaders}", *here]).runs
        run = RunDir(folder / planned.name)
        run.path.mkdir(parents=True)
        write_text(run.config, yaml.safe_dump(planned.config))
        assert (train_here(run) if nproc == 1 else in_ranks(run, nproc).returncode) == 0
        result = read_json(run.done)
        done.append((planned.name, result["weights_sha256"], result["metrics"]))
    assert done[0] == done[1]
