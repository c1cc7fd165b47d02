"""BYOL and BYOV with ResNet-18 on CIFAR-10: 200 epochs, probes, all shifts.

python results/cifar10_resnet.py --root DIR --minutes 9     trains; call it again to go on, and at last to read
python results/cifar10_resnet.py                            prints what lies in results/cifar10
"""

from __future__ import annotations

import argparse

from digits import ROOT, byov, make, show

READ = ["--severities", "1,3,5", "--samples", "10", "--batch-size", "2500", "--precision", "bf16-mixed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the folder of cifar10.npz; without it nothing is made")
    parser.add_argument("--minutes", type=float, help="of training, for each")
    options = parser.parse_args()
    for name in ("byol", "byov", "byov_wide"):
        run, out = f"runs/resnet_{name}", f"results/cifar10/resnet_{name}"
        if options.root and name != "byov_wide":
            settings = [f"data.root={options.root}"]
            settings += [] if options.minutes is None else [f"train.minutes={options.minutes}"]
            read = ["--root", options.root, *READ]
            make(f"cifar10_resnet_{name}", run, f"{out}.json", settings, read)
            if (ROOT / f"{out}.json").exists() and not (ROOT / f"{out}.probe.json").exists():
                byov("probe", run, "--root", options.root, "--out", f"{out}.probe.json")
        show(name, [f"{out}.json"])


if __name__ == "__main__":
    main()
