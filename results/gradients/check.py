"""The gradients of a compiled BYOV step at σ → 0 beside those of eager BYOL, of any commit of byov, on a GPU.

    git worktree add OLD COMMIT
    python results/gradients/check.py OLD [nodrawn|nosolid|nogelu|nomix|default|aot] … [resnet]

At σ = 2e-9 BYOV is BYOL, so that every gradient should agree to bfloat16's rounding (0.13 at most here). The words
after the tree switch off one suspect: the draw kernel, the draw in memory, the GELU kernel, Inductor's mix-order
reduction, CUDA graphs, Inductor. Random images, so that nothing has to be carried along; the shapes of
recipes/cifar10_vit_byov.toml, or of the ResNet-18's. What was read: h200.txt.
"""

import importlib
import math
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

root, *switches = sys.argv[1:]
sys.path.insert(0, f"{Path(root).resolve()}/src")
os.chdir(root)
module = importlib.import_module
if "nodrawn" in switches:
    module("byov.posterior.gaussian").pays = lambda *_: False
if "nosolid" in switches:
    module("byov.posterior.factor").solid = lambda draw: draw
if "nogelu" in switches:
    module("byov.models.gelu").pays = lambda *_, **__: False
if "nomix" in switches:
    module("torch._inductor.config").triton.mix_order_reduction = False
load, pretrain = module("byov.data.sources").load, module("byov.ssl.pretrain")
load_config = module("byov.train.config").load_config

SETTINGS = {"byol": ["posterior.family=none"], "byov": ["posterior.log_var=-40", "posterior.beta_end=0"]}
device = torch.device("cuda")
torch.set_float32_matmul_precision("high")
path = Path(tempfile.mkdtemp()) / "noise.npz"
smooth = np.random.default_rng(0).integers(0, 256, (2048, 8, 8, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
np.savez(path, train_images=smooth, train_labels=np.zeros(2048, np.int64))
data = load(f"npz:{path}")
images, beta = data.images.to(device), torch.zeros((), device=device)


def make(name):
    torch.manual_seed(0)
    file = f"recipes/cifar10_{'resnet' if 'resnet' in switches else 'vit'}_byov.toml"
    recipe = load_config(pretrain.Pretrain, file, SETTINGS[name])
    task = pretrain.PretrainTask(recipe, data, 1, device)
    task.module.to(device).train()
    return task


def step(task, run, bf16):
    task.module.zero_grad(set_to_none=True)
    torch.compiler.cudagraph_mark_step_begin()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bf16):
        out = run(images[:512], uniforms, beta)
    out.loss.backward()
    student = task.module.student
    if not hasattr(student, "factors"):
        return {name: p.grad.clone() for name, p in student.named_parameters()}
    factor = student.factors[0]
    return {name: g.clone() for name, g in factor.layout.split(factor.get_parameter("mean").grad).items()}


uniforms = make("byol").views.draw(512, torch.Generator(device).manual_seed(1), device)
task = make("byol")
reference = step(task, task.module, bf16=False)
names = [name for name in reference if reference[name].norm() > 1e-3]
how = {"backend": "aot_eager"} if "aot" in switches else {"mode": None if "default" in switches else "reduce-overhead"}
for name in SETTINGS:
    task = make(name)
    run = torch.compile(task.module, **how)
    for _ in range(5):  # CUDA graphs: warm-up, capture, replay
        own = step(task, run, bf16=True)
    errors = {n: float((own[n] - reference[n]).norm() / reference[n].norm()) for n in names}
    worst = max(errors, key=errors.get)
    norm = math.sqrt(sum(float(g.square().sum()) for g in own.values()))
    wrong = sum(error > 0.2 for error in errors.values())
    print(
        *switches,
        name,
        f"|g| {norm:.3f}, {wrong} of {len(names)} wrong, worst {errors[worst]:.3f} ({worst})",
        flush=True,
    )
