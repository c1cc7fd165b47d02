"""Time per image of ImageNet-C's corruptions: byov against the package imagecorruptions, on one CPU in one run.

python benchmarks/corruptions.py --size 32 --images 256 [--table imagenet] [--json PATH]

Both sides work through all five severities. Repetitions go round all corruptions, the two sides in turn, and medians
are compared, so that other work on the machine falls on both. Torch uses its default number of threads.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from imagecorruptions import corrupt as peer_corrupt
from sklearn.datasets import load_sample_image

from byov.data.corruptions import CORRUPTIONS

SEVERITIES = (1, 2, 3, 4, 5)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def crops(size: int, count: int) -> np.ndarray:
    """Crops of two photographs, (count, size, size, 3), 8 bits."""
    random = np.random.default_rng(0)
    photographs = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    cut = []
    for n in range(count):
        photograph = photographs[n % 2]
        top, left = (random.integers(0, side - size + 1) for side in photograph.shape[:2])
        cut.append(photograph[top : top + size, left : left + size])
    return np.stack(cut)


def compare(
    size: int, images: int, peer_images: int, repetitions: int, table: str | None
) -> dict[str, dict[str, float]]:
    """Milliseconds per image, averaged over the severities, of both sides and their ratio, by corruption."""
    pixels = crops(size, images)
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 255
    generator = torch.Generator().manual_seed(0)

    def ours(name: str) -> None:
        for severity in SEVERITIES:
            CORRUPTIONS[name](batch, severity, generator, table=table)

    def peers(name: str) -> None:
        for severity in SEVERITIES:
            for image in pixels[:peer_images]:
                peer_corrupt(image, severity=severity, corruption_name=name)

    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in CORRUPTIONS}
    for repetition in range(repetitions + 1):
        for name in CORRUPTIONS:
            pair = seconds(lambda name=name: ours(name)), seconds(lambda name=name: peers(name))
            if repetition > 0:  # the first round compiles and fills caches
                pairs[name].append(pair)
    rows: dict[str, dict[str, float]] = {}
    for name in CORRUPTIONS:
        mine = statistics.median(pair[0] for pair in pairs[name]) / (len(SEVERITIES) * images)
        theirs = statistics.median(pair[1] for pair in pairs[name]) / (len(SEVERITIES) * peer_images)
        rows[name] = {"byov_ms": 1e3 * mine, "imagecorruptions_ms": 1e3 * theirs, "ratio": theirs / mine}
    total = {key: sum(row[key] for row in rows.values()) for key in ("byov_ms", "imagecorruptions_ms")}
    rows["total"] = {**total, "ratio": total["imagecorruptions_ms"] / total["byov_ms"]}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=32, help="side of the images in pixels, at least 32")
    parser.add_argument("--images", type=int, default=256, help="images in byov's batch")
    parser.add_argument("--peer-images", type=int, default=8, help="images in the peer's loop")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--table",
        choices=("imagenet", "cifar", "auto"),
        default="imagenet",
        help="byov's parameters; the peer has ImageNet-C's at every size, hence the default",
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if arguments.size < 32 or min(arguments.images, arguments.peer_images, arguments.repetitions) < 1:
        parser.error("--size must be at least 32 and the counts at least 1")
    table = None if arguments.table == "auto" else arguments.table
    peer_images = min(arguments.peer_images, arguments.images)
    rows = compare(arguments.size, arguments.images, peer_images, arguments.repetitions, table)
    print(f"{arguments.size} px, batch of {arguments.images}, {torch.get_num_threads()} threads, ms per image")
    print(f"{'':20}{'byov':>10}{'peer':>10}{'ratio':>9}")
    for name, row in rows.items():
        print(f"{name:20}{row['byov_ms']:10.4f}{row['imagecorruptions_ms']:10.4f}{row['ratio']:8.1f}×")
    if arguments.json is not None:
        settings = {"size": arguments.size, "images": arguments.images, "table": arguments.table}
        settings |= {"repetitions": arguments.repetitions, "threads": torch.get_num_threads()}
        machine = {"torch": torch.__version__, "machine": platform.machine(), "python": platform.python_version()}
        arguments.json.write_text(json.dumps({"settings": settings, "machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
