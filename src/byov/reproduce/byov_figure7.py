"""BYOV, Figure 7: the variance after encoder, projector and predictor as Gaussian noise grows, under 50 draws."""

from __future__ import annotations

from byov.exploration.items import ITEMS
from byov.exploration.noise import NoiseVariance, noise_figure
from byov.reproduce.byov_runs import byov_run, opened
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment

DRAWS = 50


@experiment("byov/figure7", "Variance after encoder, projector and predictor under Gaussian noise")
def figure7(context: Context) -> Outcome:
    """Whether the parts are uncertain together, and what noise does to the size and the spread of the variance."""
    [run] = opened(context, {"BYOV": byov_run(context)}, samples=DRAWS)
    protocol = {"draws": DRAWS, "run": run.about()}
    part = context.kept("noise", protocol, lambda: ITEMS["noise"].make([run]))
    found = NoiseVariance(**part["BYOV"])
    comparisons = [
        Comparison(f"Spearman: {pair}", rank, None, None, "positive, as in the paper" if rank > 0.1 else "not positive")
        for pair, rank in found.correlation.items()
    ]
    for stage, by_noise, variation in zip(found.stages, found.variance, found.variation, strict=True):
        first, last = (sum(values) / len(values) for values in (by_noise[0], by_noise[-1]))
        grows = "grows, as in the paper" if last > first else "shrinks"
        comparisons.append(Comparison(f"variance after {stage}, most noise to none", last / first, None, None, grows))
        ratio = variation[-1] / variation[0]
        tighter = "concentrates, as in the paper" if ratio < 1 else "does not concentrate"
        comparisons.append(Comparison(f"relative deviation after {stage}, likewise", ratio, None, None, tighter))
    note = f"{len(found.variance[0][0])} test images, noise up to {found.noise[-1]:g} of the pixels' range. One seed."
    return Outcome({"protocol": protocol, "noise": part}, comparisons, noise_figure({"BYOV": found}), note)
