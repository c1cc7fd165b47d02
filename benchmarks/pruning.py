"""The forward pass of a ViT whose heads and MLP units were removed, against the whole one, in one process.

python benchmarks/pruning.py [--model vit-s/16] [--size 224] [--batch 8] [--sparsity 0.5] [--json PATH]

One pass of each contender per round, each round starting with another one; a ratio is the median over rounds of the
time to that of the whole network in the same round, with quartiles. Zeros in place (unstructured pruning) are timed
too: dense kernels do not see them. The bar is that the smaller network runs at least 1.3 times as fast at 50 %.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from functools import partial
from pathlib import Path
from statistics import median

import torch
from timing import Ratio, interleaved

import byov
from byov.models import create
from byov.pruning import prune, prune_groups
from byov.pruning.masks import make_permanent

BAR = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit-s/16")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = byov.bayesianize(create(options.model, 1000, 3, options.size), byov.Gaussian())
    share = options.sparsity
    nets = {
        "whole": model.point(),
        "zeros in place": make_permanent(prune(model, share)),
        "units removed": prune_groups(model, heads=0.0, units=share),
        "heads removed": prune_groups(model, heads=share, units=0.0),
        "both removed": prune_groups(model, heads=share, units=share),
    }
    images = torch.randn(options.batch, 3, options.size, options.size, device=device)
    with torch.no_grad():
        steps = {name: partial(net.to(device).eval(), images) for name, net in nets.items()}
        interleaved(steps, 2, device)
        seconds = interleaved(steps, options.rounds, device)
    rows = {}
    print(f"{options.model}, {options.size} px, batch {options.batch}, {share:.0%} of heads and units, {device.type}")
    print(f"{'network':16} {'parameters':>12} {'ms':>9} {'speed-up':>9}   quartiles")
    for name, net in nets.items():
        ratio = Ratio.of(seconds["whole"], seconds[name])
        count = sum(p.numel() for p in net.parameters())
        rows[name] = {"parameters": count, "ms": 1e3 * median(seconds[name]), "speed_up": ratio.median}
        quartiles = f"{ratio.low:.2f} to {ratio.high:.2f}"
        print(f"{name:16} {count:12,} {rows[name]['ms']:9.1f} {ratio.median:8.2f}×   {quartiles}")
    if options.json is not None:
        about = {"model": options.model, "size": options.size, "batch": options.batch, "sparsity": share}
        about |= {"threads": torch.get_num_threads(), "machine": platform.machine(), "torch": str(torch.__version__)}
        options.json.write_text(
            json.dumps({"protocol": {**about, "device": device.type}, "rows": rows}, indent=2) + "\n"
        )
    reached = rows["both removed"]["speed_up"] >= BAR or share < 0.5
    print(f"bar: both removed at least {BAR}× as fast at 50 %: {'reached' if reached else 'missed'}")
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
