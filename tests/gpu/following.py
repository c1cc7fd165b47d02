"""SWAG beside a compiled training: its average and its width against the weights of every step, kept by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import byov
from byov.models import cifar_resnet18

from .networks import batch, shallow
from .registry import Setting, case

STEPS = 6


@case(60, {"resnet": cifar_resnet18, "vit": shallow})
def swag_follows_a_compiled_training(setting: Setting, variant: object) -> str:
    net = variant(10).to(setting.device)  # type: ignore[operator]
    compiled = torch.compile(net, mode="reduce-overhead")
    swag, path = byov.SWAG(compiled), []
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    x, y = batch(setting.size(64, 4), setting)
    for _ in range(STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        F.cross_entropy(compiled(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        swag.update()
        path.append({name: p.detach().double().cpu() for name, p in net.named_parameters()})
    model, worst = swag.posterior(), 0.0
    left, weights = 1.0, []
    for t in range(STEPS, 0, -1):
        share = (swag.eta + 1) / (t + swag.eta)
        weights.insert(0, left * share)
        left *= 1 - share
    weight = torch.tensor(weights, dtype=torch.float64)
    means, stds = model.mean(), model.std()
    for name in path[0]:
        values = torch.stack([state[name] for state in path])
        mean = torch.tensordot(weight, values, 1)
        std = swag.scale * torch.tensordot(weight, (values - mean).square(), 1).sqrt()
        worst = max(worst, float((means[name].cpu() - mean).abs().max()))
        torch.testing.assert_close(means[name].cpu().double(), mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(stds[name].cpu().double(), std, rtol=0.05, atol=1e-5)
    prediction = byov.predict(model, x, samples=4)
    assert torch.isfinite(prediction.mean).all()
    assert float(prediction.mutual_information.max()) > 0
    return f"means within {worst:.1e}"
