"""Regression tables: standardising, splits, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from byov.data import Table, table, uci
from byov.data.tables import features, random_splits


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def numbers(rows: int = 30) -> Table:
    g = torch.Generator().manual_seed(0)
    X = 5 + 3 * torch.randn(rows, 4, generator=g, dtype=torch.float64)
    X[:, 2] = 0.7
    X[::2, 2] += 2e-16  # constant but for the last bit: its std is positive and means nothing
    y = 100 * torch.randn(rows, generator=g, dtype=torch.float64)
    return Table("numbers", X, y, random_splits(rows, 3), y_other=y[:, None] ** 2)


def test_folds_are_standardised_by_their_training_part() -> None:
    data = numbers()
    train, test = data.splits[1]
    fold = data.fold(1, dtype=torch.float64)
    X, y = data.X.numpy(), data.y.numpy()[:, None]
    std = X[train].std(0)
    std[2] = 1.0
    np.testing.assert_allclose(fold.X_train.numpy(), (X[train] - X[train].mean(0)) / std, atol=1e-12)
    np.testing.assert_allclose(fold.X_test.numpy(), (X[test] - X[train].mean(0)) / std, atol=1e-12)
    np.testing.assert_allclose((fold.y_test * fold.y_std + fold.y_mean).numpy(), y[test], atol=1e-9)
    assert fold.y_train.mean().abs() < 1e-12
    assert 0 < data.X[train, 2].std() < 1e-15
    assert fold.X_train[:, 2].abs().max() < 1e-12
    assert data.fold(0).X_train.dtype == torch.float32
    assert (data.fold(0).y_train.shape, data.fold(0, "all").y_train.shape) == ((27, 1), (27, 2))
    with pytest.raises(ValueError, match="splits 0 to 2"):
        data.fold(3)


@pytest.mark.parametrize("unit", [1e-200, 1e-39, 1e39, 1e200, 1e306])
def test_what_has_no_scale_in_float32_is_refused(unit: float) -> None:
    """Its deviation would be 0 or infinite, and the column gone."""
    X = torch.arange(1.0, 13.0, dtype=torch.float64).view(6, 2)
    ends = Table("own", X * torch.tensor([1e-30, 1e30]), X[:, 0], random_splits(6)).fold()
    torch.testing.assert_close(ends.X_train, Table("own", X, X[:, 0], random_splits(6)).fold().X_train)
    X[:, 1] *= unit
    with pytest.raises(ValueError, match=r"^own: X: column 1 holds nothing larger than .* choose another unit\.$"):
        Table("own", X, X[:, 0], random_splits(6)).fold()
    with pytest.raises(ValueError, match=r"^own: y: column 0 holds"):
        Table("own", X[:, :1], X[:, 1], random_splits(6)).fold()


def test_random_splits() -> None:
    splits = random_splits(50, 4, seed=1)
    for train, test in splits:
        assert len(test) == 5
        assert sorted(torch.cat([train, test]).tolist()) == list(range(50))
    assert len({tuple(test.tolist()) for _, test in splits}) == 4
    assert torch.equal(random_splits(50, 4, seed=1)[3][1], splits[3][1])
    assert not torch.equal(random_splits(50, 4, seed=2)[3][1], splits[3][1])
    assert [len(part) for part in random_splits(2, 1)[0]] == [1, 1]
    with pytest.raises(ValueError, match=r"^The table has 1 row: splits need at least two\.$"):
        random_splits(1)
    for count, fraction in ((0, 0.1), (1, 0.0), (1, 1.0)):
        with pytest.raises(ValueError, match=f"not {count} and {fraction}"):
            random_splits(5, count, fraction)


@pytest.mark.parametrize(
    ("text", "target", "X", "y", "names"),
    [
        ("age, price,rooms\n1,10,2\n3,30,4\n", "price", [[1, 2], [3, 4]], [10, 30], ("age", "rooms", "price")),
        ("1,2,3\n4,5,6\n\n", -1, [[1, 2], [4, 5]], [3, 6], (None,)),
        ("1,2,3\n4,5,6\n\n", 0, [[2, 3], [5, 6]], [1, 4], (None,)),
        ("a,b,a\n1,2,3\n4,5,6\n", 2, [[1, 2], [4, 5]], [3, 6], (None,)),  # names of several columns tell nothing
        ("a,b,a\n1,2,3\n4,5,6\n", "b", [[1, 3], [4, 6]], [2, 5], (None,)),
        ("\ufeffgröße,b\n1,2\n3,4\n", "größe", [[2], [4]], [1, 3], ("b", "größe")),  # with Excel's byte order mark
        ("\ufeff1,2\n3,4\n", -1, [[1], [3]], [2, 4], (None,)),
    ],
)
def test_csv(tmp_path: Path, text: str, target: str | int, X: list, y: list, names: tuple[str | None, ...]) -> None:
    data = table(write(tmp_path / "a.csv", text), target, splits=2)
    assert (data.X.tolist(), data.y.tolist()) == (X, y)
    assert (*data.columns, data.target) == names
    assert (data.name, len(data.splits)) == ("a", 2)


def test_gaps_in_arrays_are_counted_in_rows_from_one(tmp_path: Path) -> None:
    X, y = torch.zeros(5, 2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    y[3] = torch.nan
    np.savez(tmp_path / "own.npz", X=X, y=y)
    for make in (lambda: Table("own", X, y, random_splits(5)), lambda: table(tmp_path / "own.npz")):
        with pytest.raises(ValueError, match=r"^own: y has a missing or infinite value in row 4\.$"):
            make()
    with pytest.raises(ValueError, match="own: y_other has a missing"):
        Table("own", X, X[:, 0], random_splits(5), y[:, None])
    X[1], X[4, 0] = torch.inf, torch.nan  # two cells of one row count once
    with pytest.raises(ValueError, match=r"X has missing or infinite values in 2 rows, the first is row 2\.$"):
        Table("own", X, y, random_splits(5))


@pytest.mark.parametrize(
    ("text", "target", "sentence"),
    [
        ("a,b\n1,red\n", "b", "line 2: 'red' in column 'b' is not a number"),
        ("a,b\n1,2\n\n1,nan\n", "b", r"t\.csv, line 4: 'nan' in column 'b' is a missing or infinite value\."),
        ("a,b\n1,5,2,5\n", "b", r"4 cells where 2 .* the decimal sign has to be a point\."),
        ("a;b\n1;2\n", 0, "Commas separate the columns"),
        ("0,5;1,5\n0,5;2,5\n", 0, "'5;1' in column '1' is not a number.* has to be a point"),
        ('a,b\n"1,5",2\n', "b", "'1,5' in column 'a' is not a number.* has to be a point"),
        ("a,b\n1_5,2\n", "b", "'1_5' in column 'a' is not a number"),
        ("1,2\n3,-inf\n", 0, r"t\.csv, line 2: '-inf' in column '1' is a missing or infinite value\."),
        ("1,NA,3\n4,5,6\n7,8,9\n", 0, r"t\.csv, line 1: 'NA' in column '1' is not a number\."),
        ("a,b,a\n1,2,3\n4,5,6\n", "a", r"t\.csv has 2 columns 'a': count to the target's instead\."),
        ("a,b\n1,2\n", "a", r"t\.csv has 1 row: splits need at least two\."),
        ("a,b\n1,2\n", "c", "no column 'c'; it has a, b"),
        ("a,b\n1,2\n", 5, "none can be the target"),
        ("1\n2\n", 0, "none can be the target"),
        ("a,b\n", "a", "no rows"),
        (",a,b\n0,1,2\n1,2,3\n", "b", r"t\.csv has a column without a name, number 0: leave an index out"),
        ("0,1,2\n5,6,7\n8,9,1\n", 0, r"t\.csv has the columns' numbers in its first line"),
        ("", 0, "is empty"),
        ("größe,b\n1,2\n".encode("latin-1"), 0, r"t\.csv is not UTF-8 text"),
        (b'a,b\n1,2\n"' + b"1" * 200_000, 0, r"t\.csv is not a \.csv file: field larger"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str | bytes, target: str | int, sentence: str) -> None:
    (tmp_path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=sentence):
        table(tmp_path / "t.csv", target)


def test_npz_tables(tmp_path: Path) -> None:
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    np.savez(tmp_path / "own.npz", X=X, y=y[:, None])
    data = table(tmp_path / "own.npz", splits=3)
    assert data.y.tolist() == y.tolist()
    assert (len(data.splits), data.y_other, data.columns) == (3, None, ())
    write(tmp_path / "text.txt", "1,2")
    for name, sentence in (("absent.csv", "is not a file"), ("text.txt", r"\.csv or an \.npz")):
        with pytest.raises(ValueError, match=sentence):
            table(tmp_path / name)


TRAIN, TEST = np.array([[0, 1, 2, 3]]), np.array([[4, 5]])


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"y": np.array(list("abcdef"))}, "y must hold numbers"),
        ({"y": np.arange(5)}, r"X \(N, D\) and y \(N,\)"),
        ({"X": np.ones((1, 2)), "y": np.ones(1)}, r"t\.npz has 1 row: splits need at least two\."),
        ({"y": None}, r"t\.npz has no array 'y'; it has the arrays X\."),
        ({"split_train": TRAIN, "split_test": TEST - 1}, "split 0 has 1 of its test rows in training too, .* row 3"),
        ({"split_train": TRAIN, "split_test": TEST + 1}, "split 0 has the test row 6, of rows 0 to 5"),
        ({"split_train": TRAIN - 1, "split_test": TEST}, "split 0 has the training row -1, of rows 0 to 5"),
        ({"split_train": TRAIN + 0.5, "split_test": TEST}, r"t\.npz: split_train and split_test hold whole numbers"),
        ({"split_train": TRAIN, "split_test": TEST[0]}, "a line per split"),
        ({"split_train": TRAIN, "split_test": TEST[[0, 0]]}, "a line per split"),
        ({"split_train": TRAIN[:0], "split_test": TEST[:0]}, "a line per split"),
        ({"split_train": TRAIN, "split_test": TEST[:, :0]}, "split 0 must have a list of whole numbers as its test"),
        ({"split_train": TRAIN}, "has no array 'split_test'"),
    ],
)
def test_bad_npz_tables(tmp_path: Path, arrays: dict[str, np.ndarray | None], sentence: str) -> None:
    whole: dict[str, np.ndarray | None] = {"X": np.ones((6, 2)), "y": np.ones(6), **arrays}
    np.savez(tmp_path / "t.npz", **{key: array for key, array in whole.items() if array is not None})
    with pytest.raises(ValueError, match=sentence):
        table(tmp_path / "t.npz")


NAMES = ("a", "b", "c")


def rows(path: Path, text: str, columns: tuple[str, ...] = NAMES, target: str | int = -1) -> list[list[float]]:
    return features(write(path, text), 3, target, columns, "y").tolist()


def test_rows_to_predict_are_matched_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    named = ("a,b,c\n1,2,3\n", "a,b,c,y\n1,2,3,9\n", "b,a,c,y\n2,1,3,9\n", "y,c,b,a\n9,3,2,1\n")
    for text in (*named, "1,2,3\n", "1,2,3,9\n"):
        assert rows(path, text) == [[1, 2, 3]]
    assert rows(path, "9,1,2,3\n", target=0) == [[1, 2, 3]]
    for text, sentence in (
        ("a,b,y\n1,2,9\n", r"t\.csv are not those the model was trained on: it lacks 'c'\.$"),
        ("a,b,d\n1,2,3\n", r"it lacks 'c'; it also has 'd'\.$"),
        ("a,b,c,d,y\n1,2,3,4,9\n", "it also has 'd'"),
        ("a,b,b,c\n1,2,2,3\n", "it has twice 'b'"),
        ("1,2\n", "has rows of 2 numbers, where the model takes 3 features"),
    ):
        with pytest.raises(ValueError, match=sentence):
            rows(path, text)


def test_without_names_the_number_of_columns_has_to_fit(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    assert rows(path, "b,a,c\n1,2,3\n", ()) == [[1, 2, 3]]
    assert rows(path, "y,a,b,c\n9,1,2,3\n", (), "y") == [[1, 2, 3]]
    np.savez(tmp_path / "t.npz", X=np.ones((4, 3)))
    assert features(tmp_path / "t.npz", 3, -1, NAMES, "y").shape == (4, 3)
    for count in (2, 4):
        with pytest.raises(ValueError, match=rf"rows of 3 numbers, where the model takes {count} features"):
            features(tmp_path / "t.npz", count)
    np.savez(tmp_path / "t.npz", X=np.full((4, 3), np.nan))
    with pytest.raises(ValueError, match=r"t\.npz: X has missing"):
        features(tmp_path / "t.npz", 3)


def test_uci_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uci").mkdir()
    split = np.array([[0, 1, 2, 3]], np.uint16), np.array([[4, 5]], np.uint16)
    X = np.random.default_rng(0).normal(size=(6, 2))
    np.savez(
        tmp_path / "uci" / "wine_red.npz", X=X, y=X[:, 0], y_other=X[:, 1:], split_train=split[0], split_test=split[1]
    )
    data = uci("wine-red", tmp_path)
    assert data.splits[0][1].tolist() == [4, 5]
    assert data.y_other.shape == (6, 1)
    with pytest.raises(ValueError, match=r"yacht\.npz is missing; .* has wine_red"):
        uci("yacht", tmp_path)
    rows = np.column_stack([1990 + np.arange(4), np.arange(8).reshape(4, 2)])
    np.savetxt(tmp_path / "uci" / "YearPredictionMSD.txt", rows, delimiter=",")
    with pytest.raises(ValueError, match="year: split 0 must have"):
        uci("year", tmp_path)  # a part of the file has no test rows
    monkeypatch.setattr("byov.data.tables.YEAR_TRAIN", 3)
    year = uci("year", tmp_path)
    assert year.y.tolist() == [1990, 1991, 1992, 1993]
    assert year.X.shape == (4, 2)
    assert len(year.splits) == 1
