"""`byov.evaluation`: rows of scores that are the metrics' own numbers, and a pure function of their settings."""

from zlib import crc32

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.data import load
from byov.data.augmentations import AUGMENTATIONS
from byov.data.corruptions import CORRUPTIONS, corrupt
from byov.evaluation import Classifier, Row, evaluate, scores, summarise
from byov.evaluation.rows import CHUNK, corruption_errors, parse_severities, shifts_for
from byov.metrics import functional as metrics
from byov.posterior.random import stream
from byov.prediction import Prediction
from byov.prediction.result import Moments
from byov.runs.run import digest
from byov.ssl.probe import READ

TWO = {name: CORRUPTIONS[name] for name in ("gaussian_noise", "contrast")}


def network(log_var: float | None = -4.0) -> nn.Module:
    torch.manual_seed(7)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    return net if log_var is None else byov.bayesianize(net, byov.Gaussian(log_var=log_var))


def digits(count: int = 120) -> tuple[Tensor, Tensor]:
    data = load("digits", "test")
    assert data.labels is not None
    return data.images[:count], data.labels[:count]


# Numbers


def direct(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """The scores again, from `byov.metrics.functional` alone."""
    parts = metrics.brier_decomposition(probs, labels)
    return {
        "top1": metrics.accuracy(probs, labels).item(),
        "top5": metrics.accuracy(probs, labels, top_k=5).item(),
        "nll": metrics.nll(probs, labels).item(),
        "ece": metrics.calibration_error(probs, labels, bins=15).item(),
        "ece_floor": metrics.calibration_floor(probs, bins=15).item(),
        "adaptive_ece": metrics.adaptive_calibration_error(probs, labels, bins=15).item(),
        "ece_paper": metrics.calibration_error(probs, labels, bins=20, min_count=6).item(),
        "mce": metrics.calibration_error(probs, labels, bins=20, norm="max", min_count=6).item(),
        "brier": metrics.brier_score(probs, labels).item(),
        **{name: part.item() for name, part in parts._asdict().items()},
        "aurc": metrics.aurc(probs, labels).item(),
        "entropy": metrics.entropy(probs).mean().item(),
    }


def test_rows_are_what_the_metrics_say_of_the_shifted_images() -> None:
    """Everything by hand: the shift, its generator, the draws, and every score from the draws themselves."""
    model, (images, labels) = network(), digits()
    rows = {row.key: row for row in evaluate(model, images, labels, TWO, (2,), samples=5, seed=3)}
    assert list(rows) == [("clean", 0), ("gaussian_noise", 2), ("contrast", 2)]
    x = {"clean": images.float() / 255}
    chance = Generator().manual_seed(stream(3, crc32(b"gaussian_noise"), 2))
    x["gaussian_noise"] = corrupt(x["clean"], "gaussian_noise", 2, chance)
    known: dict[str, Tensor] = {}
    for name, batch in x.items():
        row = rows[name, 0 if name == "clean" else 2]
        with torch.no_grad():
            at_mean = model.eval()(batch).softmax(1)
        held = Generator().manual_seed(stream(3, READ))
        drawn = byov.predict(model, batch, 5, "loop", generator=held, keep=True).draws
        for reading, probs in ((row.at_mean, at_mean), (row.under_draws, drawn.mean(0))):
            for key, value in direct(probs, labels).items():
                assert reading[key] == pytest.approx(value, abs=2e-6), (name, key)
        information = metrics.mutual_information(drawn)
        assert row.at_mean["mutual_information"] == 0
        assert row.under_draws["mutual_information"] == pytest.approx(information.mean().item(), abs=2e-6)
        foreign = {"entropy": metrics.entropy(at_mean), "mutual_information": information}
        known = known or foreign
        if name == "clean":
            assert "auroc_entropy" not in row.at_mean
            continue
        assert "auroc_mutual_information" not in row.at_mean
        for measure, reading in (("entropy", row.at_mean), ("mutual_information", row.under_draws)):
            pair = known[measure], foreign[measure]
            assert reading[f"auroc_{measure}"] == pytest.approx(metrics.ood_auroc(*pair).item(), abs=1e-4)
            assert reading[f"fpr95_{measure}"] == pytest.approx(metrics.fpr95(*pair).item(), abs=0.01)


def test_a_row_depends_on_nothing_but_its_own_settings() -> None:
    model, (images, labels) = network(), digits()
    both = {row.key: row for row in evaluate(model, images, labels, TWO, (1, 4), samples=2)}
    alone = evaluate(model, images, labels, {"contrast": TWO["contrast"]}, (4,), samples=2)
    assert alone == [both["clean", 0], both["contrast", 4]]
    batched = evaluate(Classifier(model, batch_size=7), images, labels, TWO, (1, 4), samples=2)
    for row in batched:
        assert row.under_draws["nll"] == pytest.approx(both[row.key].under_draws["nll"], rel=1e-5)
    other = evaluate(model, images, labels, TWO, (1,), samples=2, seed=1)
    assert other[0].at_mean == both["clean", 0].at_mean  # no chance at μ without a shift
    assert other[1].at_mean != both["gaussian_noise", 1].at_mean
    assert other[0].under_draws != both["clean", 0].under_draws


def test_images_beyond_one_chunk_are_shifted_by_one_stream() -> None:
    model, (few, labels) = network(None), digits(CHUNK // 2)
    images, labels = few.repeat(3, 1, 1, 1), labels.repeat(3)
    (_, row) = evaluate(model, images, labels, {"gaussian_noise": TWO["gaussian_noise"]}, (5,))
    chance = Generator().manual_seed(stream(0, crc32(b"gaussian_noise"), 5))
    x = images.float() / 255
    shifted = torch.cat([corrupt(part, "gaussian_noise", 5, chance) for part in (x[:CHUNK], x[CHUNK:])])
    with torch.no_grad():
        probs = model(shifted).softmax(1)
    assert row.at_mean["nll"] == pytest.approx(metrics.nll(probs, labels).item(), abs=1e-6)
    assert row.under_draws is None


def test_normalisation_follows_the_shift() -> None:
    net, (images, labels) = network(None), digits()
    (_, row) = evaluate(Classifier(net, (0.3,), (0.4,)), images, labels, {"contrast": TWO["contrast"]}, (3,))
    with torch.no_grad():
        probs = net((corrupt(images.float() / 255, "contrast", 3) - 0.3) / 0.4).softmax(1)
    assert row.at_mean["nll"] == pytest.approx(metrics.nll(probs, labels).item(), abs=1e-6)


def test_too_few_images_for_the_papers_bins_leave_them_undefined() -> None:
    moments = Moments("classification")
    moments.update(torch.eye(5).mul(0.5).add(0.1)[None])
    few = Prediction(**moments.result(None), samples=1, strategy="loop")
    found = scores(few, torch.arange(5))
    assert found["mce"] is None
    assert found["ece_paper"] is None
    assert found["ece"] == pytest.approx(0.4)
    assert summarise([Row("fog", 1, found), Row("fog", 2, found)])[0].at_mean["mce"] is None


def test_summary_is_the_mean_over_severities_then_over_shifts() -> None:
    def row(shift: str, severity: int, top1: float) -> Row:
        return Row(shift, severity, {"top1": top1}, {"top1": top1 / 2})

    rows = [row("clean", 0, 1.0), row("fog", 1, 0.8), row("fog", 2, 0.4), row("snow", 1, 0.2), row("snow", 2, 0.0)]
    found = {each.shift: each for each in summarise(rows)}
    assert list(found) == ["fog", "snow", "mean"]
    assert found["fog"].at_mean["top1"] == pytest.approx(0.6)
    assert found["mean"].at_mean["top1"] == pytest.approx(0.35)
    assert found["mean"].under_draws["top1"] == pytest.approx(0.175)
    assert summarise(rows[:1]) == []
    old, new = {"top1": 0.5}, {"top1": 0.7, "ece_floor": 0.1}  # rows of older files lack a score
    assert summarise([Row("fog", 1, new), Row("fog", 2, old)])[0].at_mean == {"top1": 0.6, "ece_floor": None}


def test_corruption_errors_against_a_baseline_at_mu() -> None:
    def rows(clean: float, fog: float, snow: float, drawn: float | None = None) -> list[Row]:
        values = {("clean", 0): clean, ("fog", 1): fog, ("fog", 2): fog, ("snow", 1): snow, ("snow", 2): snow}
        return [Row(*key, {"top1": v}, None if drawn is None else {"top1": drawn}) for key, v in values.items()]

    found = corruption_errors(rows(0.9, 0.8, 0.6, drawn=0.5), rows(0.8, 0.6, 0.2))
    assert found["at_mean"]["CE"] == pytest.approx({"fog": 50.0, "snow": 50.0})
    assert found["at_mean"]["mCE"] == pytest.approx(50.0)
    assert found["at_mean"]["relative_mCE"] == pytest.approx(50.0)  # (0.1/0.2 + 0.3/0.6) / 2
    assert found["under_draws"]["mCE"] == pytest.approx(100 * (0.5 / 0.4 + 0.5 / 0.8) / 2)
    harmless = corruption_errors(rows(0.9, 0.8, 0.6), rows(0.8, 0.8, 0.8))["at_mean"]
    assert harmless["mCE"] == pytest.approx(100 * (0.2 / 0.2 + 0.4 / 0.2) / 2)
    assert harmless["relative_mCE"] is None
    assert "does not harm" in harmless["note"]


def test_severities_are_read() -> None:
    assert parse_severities("1-5") == (1, 2, 3, 4, 5)
    assert parse_severities("5,1,1") == (1, 5)
    for text in ("0", "1-6", "2-1", "", "strong", "-1"):
        with pytest.raises(ValueError, match="1 to 5"):
            parse_severities(text)


# Bad input of the functions


def test_shifts_that_grey_or_tiny_images_have_are_told() -> None:
    data = load("digits", "test")
    defined, left_out = shifts_for("augmentations", data)
    assert set(left_out) == {"saturation", "hue"}
    assert all("three colour channels" in reason for reason in left_out.values())
    assert set(defined) | set(left_out) == set(AUGMENTATIONS)
    assert shifts_for("corruptions", data) == (CORRUPTIONS, {})
    images, labels = digits(4)
    with pytest.raises(ValueError, match="three colour channels"):
        evaluate(network(None), images, labels, {"hue": AUGMENTATIONS["hue"]})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": torch.zeros(0, 1, 8, 8)}, "N > 0"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, "a label for each"),
        ({"samples": 0}, "at least one draw"),
        ({"severities": (6,)}, "1 to 5"),
        ({"predictor": nn.Conv2d(1, 10, 1)}, r"logits \(N, C\)"),
        ({"bins": 0}, "bins"),
    ],
)
def test_bad_arguments_are_told_in_one_sentence(changed: dict, message: str) -> None:
    images, labels = digits(20)
    arguments = {"predictor": network(None), "images": images, "labels": labels} | changed
    with pytest.raises(ValueError, match=message):
        evaluate(**arguments)


def test_the_digest_is_of_the_weights() -> None:
    net = network(None)
    before = digest(net)
    assert before == digest(network(None))
    with torch.no_grad():
        net[1].bias[0] += 1e-6
    assert digest(net) != before
    assert digest(net.bfloat16()) != before
