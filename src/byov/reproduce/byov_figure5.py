"""BYOV, Figure 5: predictive mean and std against the number of draws, 1 to 50 with 50 bootstraps, by augmentation."""

from __future__ import annotations

from byov.exploration.convergence import Convergence, convergence_figure
from byov.exploration.items import ITEMS, SEVERITY
from byov.reproduce.byov_runs import byov_run, opened
from byov.reproduce.experiment import Comparison, Context, Outcome, Scale, experiment

LIMIT: dict[Scale, int | None] = {"quick": None, "full": 10_000}
DRAWS, BOOTSTRAPS = 50, 50


@experiment("byov/figure5", "Predictive mean and deviation over the number of draws, by augmentation")
def figure5(context: Context) -> Outcome:
    """How the predictive distribution settles as draws are added, on clean and on augmented images."""
    settings = {"samples": DRAWS, "bootstraps": BOOTSTRAPS, "limit": LIMIT[context.scale]}
    [run] = opened(context, {"BYOV": byov_run(context)}, **settings)
    protocol = {**settings, "severity": SEVERITY, "run": run.about()}
    part = context.kept("convergence", protocol, lambda: ITEMS["convergence"].make([run]))
    found = {shift: Convergence(**values) for shift, values in part["BYOV"].items()}
    clean = found["clean"]
    fall = clean.image_spread[-1] / clean.image_spread[0]
    drift = max(abs(c.mean[-1] - c.mean[0]) for c in found.values())
    most = max(c.mean_spread[0] for c in found.values())
    settled = next(k for k, s in zip(clean.draws, clean.std, strict=True) if s > 0.9 * clean.std[-1])
    comparisons = [
        Comparison(
            "spread of an image's mean, 50 draws to one",
            fall,
            50**-0.5,
            None,
            "falls to 0 as 1/√K" if abs(fall / 50**-0.5 - 1) < 0.25 else "does not fall as 1/√K",
        ),
        Comparison(
            "largest drift of the expectation from 1 to 50 draws",
            drift,
            None,
            most,
            "stable, as in the paper" if drift < 2 * most else "drifts",
        ),
        Comparison("draws after which the predictive std is within 10 %", settled, None, None, ""),
    ]
    note = "1/√50 is what independent draws give; the paper shows lines and gives no numbers. One seed."
    return Outcome({"protocol": protocol, "convergence": part}, comparisons, convergence_figure({"BYOV": found}), note)
