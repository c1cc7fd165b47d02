"""BYOV, Figure 1b: the predictive std of supervised Bayes by Backprop against BYOV's, image by image.

Both are trained with the same β from 0 to its end, as in the paper; BYOV is read through a linear probe fitted under
draws. The paper does not say which number an image's predictive std is: here √Σ_c σ_c² over the classes. The first
panel is the paper's; the second has logarithms, since on easy images the std spans several orders of magnitude.
"""

from __future__ import annotations

from dataclasses import asdict

from byov.exploration.alignment import alignment_figure, predictive_std
from byov.exploration.items import both_scales, read_alignment
from byov.reproduce.byov_runs import byov_run, opened, supervised_twin
from byov.reproduce.experiment import Comparison, Context, Outcome, Scale, experiment

DRAWS: dict[Scale, int] = {"quick": 200, "full": 1000}


@experiment("byov/figure1b", "Predictive standard deviation: supervised BBB against BYOV")
def figure1b(context: Context) -> Outcome:
    """Correlations, a Gaussian fit and a kernel density of the two."""
    pair = {"BYOV": byov_run(context), "supervised BBB": supervised_twin(context)}
    runs = opened(context, pair, samples=DRAWS[context.scale], limit=None)
    first, second = runs
    if len(first.test) != len(second.test):
        raise ValueError("The two runs are not of the same images.")
    protocol = {"draws": DRAWS[context.scale], "runs": {run.name: run.about() for run in runs}}

    def make() -> dict[str, object]:
        one, other = (predictive_std(run.under_draws.std.cpu()) for run in runs)
        return {"alignment": [asdict(made) for made in both_scales(one, other, context.seed)]}

    part = context.kept("alignment", protocol, make)
    linear, log = (read_alignment(values) for values in part["alignment"])
    found = {"": linear, " of logarithms": log}
    comparisons = []
    for words, a in found.items():
        sure = abs(a.pearson) > 3 * a.pearson_error
        told = ("positive, as in the paper" if a.pearson > 0 else "negative") if sure else "not told from 0"
        comparisons.append(Comparison(f"Pearson correlation{words}", a.pearson, None, a.pearson_error, told))
    told = "positive" if log.spearman > 3 * log.spearman_error else "not told from 0"
    comparisons.append(Comparison("Spearman correlation", log.spearman, None, log.spearman_error, told))
    for words, a in found.items():
        share = a.fit.coverage["0.5"]
        verdict = "as a Gaussian" if abs(share - 0.5) < 0.1 else "not a Gaussian"
        comparisons.append(Comparison(f"share in the Gaussian's 50 % ellipse{words}", share, 0.5, None, verdict))
    note = (
        f"{len(linear.first):,} test images, {DRAWS[context.scale]} draws (the paper: 50,000 and 1000). The paper gives"
        " no correlation; 0.5 is what a Gaussian has."
    )
    return Outcome({"protocol": protocol, **part}, comparisons, alignment_figure([linear, log]), note)
