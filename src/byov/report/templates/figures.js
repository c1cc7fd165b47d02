"use strict";
// Make the charts from the page's numbers: one function per section.
const DATA = JSON.parse(document.getElementById("data").textContent);
const percent = (value, digits = 2) => (Number.isFinite(value) ? `${(100 * value).toFixed(digits)} %` : "–");
const short = (value) => `${Number((100 * value).toPrecision(3))}`.replace("-", "−");
const MEASURES = {
  top1: { name: "Top-1", axis: "top-1, %", show: percent, format: short },
  ece: { name: "ECE", axis: "ECE, %", show: percent, format: short },
  nll: { name: "NLL", axis: "NLL, nats", show: (v) => `${number(v)} nats`, format: number },
  mutual_information: { name: "Mutual information", axis: "mutual information, nats", show: (v) => `${number(v)} nats`, format: number },
};
const conditionTitle = (where) => (where === "clean" ? "Clean images" : "Shifted images, all shifts together");
const label = (group) => DATA.groups[group].label;
const series = (id) => DATA.series.find((each) => each.id === id);

function chosen(section, fallback) {
  const picked = document.querySelector(`#${section} [data-measure][aria-pressed="true"]`);
  return picked ? picked.dataset.measure : fallback;
}

// Readings at μ of a model with a posterior are dashed.
const readAs = (id) => ({ label: series(id).label, colour: series(id).group, dashed: series(id).reading === "at_mean" && DATA.groups[series(id).group].posterior });

const FIGURES = {
  gaps() {
    const pairs = DATA.verdict.comparisons.filter((each) => each.rows.length), names = [];
    const points = (value) => `${(100 * value).toFixed(2)} points`.replace("-", "−");
    const lines = pairs.map((each) => ({
      label: each.first.label === each.second.label ? `${each.second.label}: draws − μ` : `${each.second.label} − ${each.first.label}`,
      colour: DATA.groups.findIndex((group) => group.label === each.second.label), line: false,
      points: each.rows.filter((row) => row.score === "ece").map((row) => {
        const name = `${row.clean ? "clean" : "shifted"}${pairs.length > 1 ? `, ${each.second.label}` : ""}`;
        if (!names.includes(name)) names.push(name);
        const [left, right] = row.interval || [];
        const verdict = row.few ? "too few mistakes to tell" : row.sign ? (row.sign < 0 ? "better" : "worse") : row.interval ? "undecided: the bar includes 0" : "the noise is unknown";
        return { x: row.gap.value, y: names.indexOf(name), left, right, r: 5, faint: !row.sign, tip: [`${name} images: ${points(row.gap.value)}`, ...(row.interval ? [`bar ${points(left)} to ${points(right)}`] : []), verdict] };
      }),
    }));
    const ends = [0, ...lines.flatMap((line) => line.points.flatMap((p) => [p.x, p.left, p.right]))];
    return {
      title: `Difference in ECE${pairs.length > 1 ? "" : `, ${lines[0].label}`}`, row: 46, zero: true,
      describe: "A dot for each difference with its error bar; left of 0 the second model is better calibrated.",
      x: { label: "points; left of 0 is better", domain: extent(ends, false, 0.08), format: short },
      y: { label: "", categories: names }, series: lines,
    };
  },
  severity() {
    const metric = document.getElementById("heat-metric").value, about = DATA.ood.metrics[metric];
    const lines = Object.entries(DATA.ood.values).filter(([, found]) => found[metric]).map(([id, found]) => ({
      ...readAs(id),
      points: [0, ...DATA.ood.severities].map((level) => ({ x: level, y: level ? (found[metric]["all shifts"] || {})[level] : (found[metric].clean || {}).mean, level }))
        .filter((p) => Number.isFinite(p.y)).map((p) => ({ ...p, tip: [p.level ? `severity ${p.level}, mean over the shifts` : "clean", `${about.name} ${about.unit === "%" ? percent(p.y) : number(p.y)}`] })),
    }));
    return {
      title: `${about.name} by severity`, describe: "The mean over the shifts at each severity; severity 0 is the clean images.",
      x: { label: "severity (0: clean)", domain: [-0.15, 5.15], ticks: [0, 1, 2, 3, 4, 5] },
      y: { label: `${about.name}${about.unit ? `, ${about.unit}` : ""}`, format: about.unit === "%" ? short : number }, series: lines,
    };
  },
  risk(host) {
    const where = host.dataset.where, found = DATA.risk[where];
    const lines = Object.entries(found).map(([id, each]) => ({
      ...readAs(id),
      points: each.points.map(([coverage, risk]) => ({ x: coverage, y: risk, r: 0, tip: [`the ${percent(coverage, 0)} it is most confident about`, `${percent(risk)} are wrong`, `AURC ${percent(each.aurc)}`] })),
    }));
    return {
      title: conditionTitle(where), describe: "The error rate among the images that a model is most confident about.",
      x: { label: "images kept, %", domain: [0, 1], format: short, ticks: [0, 0.2, 0.4, 0.6, 0.8, 1] }, y: { label: "errors among them, %", format: short }, series: lines,
    };
  },
  entropy(host) {
    const found = DATA.entropy.shares, own = found[host.dataset.series], width = DATA.entropy.width;
    const most = Math.max(...Object.values(found).flatMap((each) => Object.values(each).flat()));
    const lines = Object.entries(own).map(([where, shares]) => ({
      label: where, colour: series(host.dataset.series).group, dashed: where === "clean", band: where === "shifted",
      points: shares.map((share, i) => ({ x: (i + 0.5) * width, y: share, low: 0, high: share, r: 0, tip: [`${number(i * width, 3)} to ${number((i + 1) * width, 3)} nats`, `${percent(share, 1)} of the ${where} images`] }))
        .map((p) => (where === "clean" ? { ...p, low: undefined, high: undefined } : p)),
    }));
    return {
      title: series(host.dataset.series).label, describe: "Histograms of the entropy of single predictions, on clean and on shifted images.",
      x: { label: "entropy, nats", domain: [0, width * Object.values(own)[0].length] }, y: { label: "images, %", domain: [0, most * 1.05], format: short }, series: lines,
    };
  },
  calibration(host) {
    const where = host.dataset.where;
    const found = DATA.calibration[where];
    const most = Math.max(...Object.values(found).flatMap((each) => each.points.map((p) => p.count)));
    const lines = Object.entries(found).map(([id, each]) => ({
      ...readAs(id),
      points: each.points.map((p) => ({
        x: p.confidence, y: p.accuracy, low: p.low, high: p.high, r: 2.2 + 5 * Math.sqrt(p.count / most), faint: p.count < 6,
        tip: [`confidence ${percent(p.confidence, 1)}`, `accuracy ${percent(p.accuracy, 1)} (95 %: ${percent(p.low, 0)} to ${percent(p.high, 0)})`, `${p.count.toLocaleString("en")} images, gap ${percent(p.accuracy - p.confidence, 1).replace("-", "−")}`],
      })),
    }));
    const images = Object.values(found)[0].images;
    return {
      title: conditionTitle(where),
      describe: `Accuracy against confidence in ${Object.values(found)[0].bins} bins of ${images.toLocaleString("en")} predictions per model; a calibrated model lies on the diagonal.`,
      x: { label: "confidence, %", domain: [0, 1], format: short, ticks: [0, 0.2, 0.4, 0.6, 0.8, 1] },
      y: { label: "accuracy, %", domain: [0, 1], format: short },
      diagonal: true, square: true, series: lines,
    };
  },
  pruning(host) {
    const measure = chosen("pruning", "top1"), told = MEASURES[measure];
    const lines = DATA.pruning.flatMap((each) => each.value.filter((curve) => curve[measure]).map((curve) => ({
      label: `${each.label}, by ${curve.by === "snr" ? "SNR" : curve.by}${curve.scope === "global" ? ", global" : ""}${curve.probe === "refitted" ? ", probe refitted" : ""}`,
      colour: each.group, dashed: curve.by === "magnitude" && DATA.pruning.some((other) => other.group === each.group && other.value.some((c) => c.by === "snr")),
      points: curve.sparsity.map((s, i) => ({ x: s, y: curve[measure][i], tip: [`${short(s)} % of the weights are 0`, `${told.name} ${told.show(curve[measure][i])}`] })),
    })));
    return {
      title: `${told.name} of the pruned network at μ, without retraining`,
      describe: "The score against the share of each layer's weights set to 0.",
      x: { label: "weights set to 0, %", domain: [-0.02, 1], format: short, ticks: [0, 0.2, 0.4, 0.6, 0.8, 1] },
      y: { label: told.axis, format: told.format }, series: lines,
    };
  },
  convergence(host) {
    const measure = host.dataset.measure, told = MEASURES[measure];
    const rules = DATA.convergence.filter((each) => Number.isFinite(each.value.at_mean[measure])).map((each) => ({ y: each.value.at_mean[measure], colour: each.group }));
    const lines = DATA.convergence.map((each) => ({
      label: label(each.group), colour: each.group, band: true,
      points: each.value.draws.map((s, i) => {
        const mean = each.value[measure].mean[i], reach = each.value[measure].deviation[i];
        return { x: s, y: mean, low: mean - reach, high: mean + reach, tip: [`${s} ${s === 1 ? "draw" : "draws"}: ${told.name} ${told.show(mean)}`, `± ${told.show(reach)} over sets of draws`, ...(measure in each.value.at_mean ? [`at μ ${told.show(each.value.at_mean[measure])}`] : [])] };
      }),
    }));
    const spread = [...lines.flatMap((line) => line.points.flatMap((p) => [p.low, p.high])), ...rules.map((rule) => rule.y)];
    return {
      title: `${told.name} of the mean of K draws`,
      describe: "The score against the number of draws; the dotted line is the value at the posterior mean.",
      x: { label: "draws K", log: true, ticks: [1, 2, 5, 10, 20, 50, 100, 200].filter((s) => s <= Math.max(...DATA.convergence.flatMap((e) => e.value.draws))) },
      y: { label: told.axis, format: told.format, domain: extent(spread, false, 0.12) }, series: lines, rules,
    };
  },
  layers(host) {
    const what = host.dataset.what;
    const names = [...new Set(DATA.layers.flatMap((each) => each.value.filter((row) => row.shape.length > 1).map((row) => row.name)))];
    const lines = DATA.layers.map((each) => ({
      label: label(each.group), colour: each.group, line: false,
      points: each.value.filter((row) => row.shape.length > 1 && row[what]).map((row) => ({
        x: row[what][2], y: names.indexOf(row.name), left: row[what][0], right: row[what][4], inner: [row[what][1], row[what][3]],
        tip: [row.name, `median ${number(row[what][2])}`, `quartiles ${number(row[what][1])} and ${number(row[what][3])}`, `5 to 95 % ${number(row[what][0])} to ${number(row[what][4])}`, `${row.weights.toLocaleString("en")} weights`],
      })),
    }));
    return {
      title: what === "sigma" ? "σ, the standard deviation of the weights" : "SNR, |μ|/σ of the weights",
      describe: "By layer: the median, the quartiles and the range from 5 to 95 % of its weights.",
      x: { label: what === "sigma" ? "σ" : "|μ|/σ", log: true }, y: { label: "", categories: names }, series: lines,
    };
  },
  representation() {
    const names = [...new Set(DATA.representation.flatMap((each) => Object.keys(each.value.r_auroc)))];
    const lines = DATA.representation.map((each) => ({
      label: label(each.group), colour: each.group, line: false,
      points: Object.entries(each.value.r_auroc).filter(([, pair]) => pair).map(([name, [value, error]]) => ({
        x: value, y: names.indexOf(name), left: value - error, right: value + error,
        tip: [name, `R-AUROC ${number(value)} ± ${number(error)}`],
      })),
    }));
    return {
      title: "R-AUROC by measure of uncertainty",
      describe: "The value of each measure with its standard error over images.",
      x: { label: "R-AUROC" }, y: { label: "", categories: names }, series: lines,
    };
  },
  history(host) {
    const what = host.dataset.what, each = DATA.layers[Number(host.dataset.entry)];
    const lines = each.log.layers.map((layer, i) => ({
      label: layer.name || "(network)", colour: each.group, shade: i / Math.max(1, each.log.layers.length - 1),
      points: each.log.epochs.map((epoch, k) => ({ x: epoch, y: layer[what][k], r: 0, tip: [`epoch ${number(epoch)}`, `mean ${what === "sigma" ? "σ" : "|μ|/σ"} ${number(layer[what][k])}`] })),
    }));
    return {
      title: `${label(each.group)}: mean ${what === "sigma" ? "σ" : "|μ|/σ"} by layer over training`, describe: "One line per layer.",
      x: { label: "epoch" }, y: { label: what === "sigma" ? "mean σ" : "mean |μ|/σ", log: true }, series: lines,
    };
  },
  explored(host) {
    const what = host.dataset.what, shifts = DATA.explored[Number(host.dataset.file)].curves[host.dataset.run];
    const words = what === "mean" ? "predictive mean" : "predictive std";
    const lines = Object.entries(shifts).map(([shift, found], i) => ({
      label: shift.replaceAll("_", " "), colour: i, dashed: i > 5, band: true,
      points: found.draws.map((k, j) => {
        const value = found[what][j], reach = found[`${what}_spread`][j];
        return { x: k, y: value, low: value - reach, high: value + reach, r: 0, tip: [`${k} draws: ${words} ${number(value)}`, `± ${number(reach)} over bootstraps`] };
      }),
    }));
    return { title: `${host.dataset.run}: ${words} of the predicted class's probability`, describe: "By number of draws, with a line per shift.", x: { label: "draws K" }, y: { label: words }, series: lines };
  },
  training(host) {
    const curve = host.dataset.curve;
    const words = { loss: "Loss", ssl: "Self-supervised loss", cross_entropy: "Cross-entropy", kl: "KL / N", accuracy: "Training accuracy", sigma: "Mean σ", snr: "Mean SNR", spread: "Spread of the features", lr: "Learning rate", beta: "β" };
    const lines = DATA.training.filter((each) => each.curves[curve]).map((each) => ({
      label: label(each.group), colour: each.group,
      points: each.curves[curve].map(([epoch, value]) => ({ x: epoch, y: value, r: 0, tip: [`seed ${each.seed}, epoch ${number(epoch)}`, `${words[curve] || curve} ${number(value)}`] })),
    }));
    return { title: words[curve] || curve, describe: "Over the epochs of training.", x: { label: "epoch" }, y: { label: words[curve] || curve }, series: lines };
  },
};

function drawFigures(root = document) {
  for (const host of root.querySelectorAll("[data-figure]")) new Chart(host, FIGURES[host.dataset.figure](host));
}
