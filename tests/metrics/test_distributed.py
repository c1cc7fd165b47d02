"""Two processes, each with a part of the samples, report the number of the whole; so do they when one has nothing."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from .cases import CASES, SAMPLES, assert_equal, fed


def report(rank: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    try:
        for split in ([60, 30], [SAMPLES, 0]):
            mine = torch.arange(SAMPLES).split(split)[rank]
            for case in CASES.values():
                metric = fed(case, mine) if len(mine) else case.build()
                assert_equal(metric.compute(), case.expected())
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_two_processes_report_the_whole(tmp_path: Path) -> None:
    """Forked, as a DataLoader's workers are: it saves two imports of torch."""
    mp.start_processes(report, (str(tmp_path / "rendezvous"),), nprocs=2, start_method="fork")
