"""byov.hf, with the real libraries: the Trainer's steps beside a loop by hand, LoRA from the rules to PEFT's files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import bert, lora
from torch import nn
from torch.testing import assert_close

import byov
from byov.overhead import overhead

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
accelerate = pytest.importorskip("accelerate")

IDS = torch.randint(3, 30, (12, 5), generator=torch.Generator().manual_seed(0))
DATA = [{"input_ids": ids, "labels": int(ids[0]) % 3, "row": i} for i, ids in enumerate(IDS)]
X = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def arguments(folder: Path, **more: Any) -> Any:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "logging_steps": 1}
    steady = {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "learning_rate": 1e-2, "max_steps": 3}
    steady["adam_epsilon"] = 1e-3  # else Adam makes steps of gradients that are zero but for rounding
    return transformers.TrainingArguments(str(folder), **quiet, **steady, **more)


@pytest.mark.parametrize(("parts", "summed"), [(1, False), (2, False), (2, True)])
def test_the_trainer_does_what_a_loop_by_hand_does(parts: int, summed: bool, tmp_path: Path) -> None:
    """It reads the signature ("row" does not reach the network) and pays the KL once for accumulated batches.

    `summed`: of a network that says it normalises its loss over them, the Trainer adds what it returns for each.
    """
    model = byov.bayesianize(bert(), byov.Gaussian(-6.0))
    model.net.accepts_loss_kwargs = summed  # type: ignore[assignment]
    mine, noise = copy.deepcopy(model), model.noise()
    given = arguments(tmp_path, per_device_train_batch_size=12 // parts, gradient_accumulation_steps=parts)
    trainer = byov.hf.Trainer(model=model, args=given, train_dataset=DATA, n=40.0, beta_end=2.0)
    with model.draw(noise=noise):
        trainer.train()
    optimizer = torch.optim.AdamW(byov.parameter_groups(mine, 1e-2, 3), weight_decay=0.0, eps=1e-3)
    labels = torch.tensor([each["labels"] for each in DATA])
    for step in range(3):
        with mine.draw(noise=noise):
            loss = mine(**X, labels=labels).loss * (parts if summed else 1)
            loss = byov.elbo(loss, mine, 40.0, byov.beta(step, 3, 2.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for found, expected in ((model.mean(), mine.mean()), (model.std(), mine.std())):
        for name in found.keys() - {name for name in found if "key.bias" in name}:  # which has no gradient but rounding
            assert_close(found[name], expected[name], rtol=1e-4, atol=2e-5)
    assert trainer.predict(DATA).predictions.shape == (12, 3)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(DATA)


def test_the_trainer_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"BertForSequenceClassification has no posterior: pass it to byov.bayesianize"):
        byov.hf.Trainer(model=bert(), args=arguments(tmp_path), train_dataset=DATA)
    with pytest.raises(ValueError, match=r"^A streaming data set does not know its number of examples: pass it as n="):
        byov.hf.Trainer(model=byov.bayesianize(bert()), args=arguments(tmp_path), train_dataset=Stream())
    trainer = byov.hf.Trainer(
        model=byov.bayesianize(bert(), byov.Gaussian()), args=arguments(tmp_path), train_dataset=DATA
    )
    assert trainer.n == pytest.approx(50 * sum(p.numel() for p in bert().parameters()))


def test_accelerate_takes_it() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = byov.bayesianize(bert(), {"classifier.*": byov.Gaussian()})
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    accelerator.backward(prepared(**X).logits.sum())
    optimizer.step()
    assert accelerator.unwrap_model(prepared) is model


@pytest.mark.parametrize("on", ["AB", "A"])
def test_lora_from_the_rules_to_pefts_files(on: str, tmp_path: Path) -> None:
    net = lora()
    for name, parameter in net.named_parameters():  # B is zero before training
        if "lora_B" in name:
            nn.init.normal_(parameter)
    model = byov.bayesianize(net, byov.hf.lora(byov.Gaussian(-2.0), on))
    assert {name.split(".")[-3] for name in model.covered()} == {f"lora_{letter}" for letter in on}
    plain, gaussian, *_ = overhead(net, on="*lora_*" if on == "AB" else "*lora_A*")
    assert gaussian.parameters - plain.parameters == sum(map(torch.numel, model.mean().values()))
    prediction = byov.predict(model, X, 8)
    assert prediction.task == "classification"
    assert float(prediction.mutual_information.mean()) > 0  # type: ignore[union-attr]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    at_mean = model.eval()(**X).logits
    merged = model.merge_and_unload().eval()
    assert type(merged) is transformers.BertForSequenceClassification
    assert_close(merged(**X).logits, at_mean)
    model.point().save_pretrained(tmp_path)
    base = copy.deepcopy(net).unload()
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert_close(again(**X).logits, at_mean)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="merge_adapter changes the network's weights or layers"):
        model.merge_adapter()
    with pytest.raises(ValueError, match="A LoRA has the matrices 'A' and 'B'"):
        byov.hf.lora(on="C")


def test_text_is_generated_under_the_mean_or_a_held_draw() -> None:
    about = {"n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=30, **about, pad_token_id=1))
    model = byov.bayesianize(net, byov.Gaussian(-1.0)).eval()
    words = {"input_ids": IDS[:2], "attention_mask": torch.ones_like(IDS[:2]), "max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(**words), net.eval().generate(**words))
    texts = []
    for seed in (0, 0, 1):
        with model.draw(generator=torch.Generator().manual_seed(seed)):
            texts.append(model.generate(**words).tolist())
    assert texts[0] == texts[1] != texts[2]
    with pytest.raises(ValueError, match="resize_token_embeddings changes"):
        model.resize_token_embeddings(40)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rules", [{"*.bias": byov.Gaussian()}, {byov.norm_layers: byov.EMP(2)}, byov.hf.lora()])
def test_layers_that_run_again_have_no_posterior(rules: Any) -> None:
    """In the backward pass they would be without their weights, which norms and biases do not notice."""
    net = lora() if "*lora_*" in rules else bert()
    net.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="Gradient checkpointing runs layers again in the backward pass"):
        byov.bayesianize(net, rules)
    net.gradient_checkpointing_disable()
    byov.bayesianize(net, rules)


def test_a_posterior_beside_the_layers_that_run_again_has_the_same_gradients() -> None:
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        net = bert()
        if again:
            net.gradient_checkpointing_enable({"use_reentrant": False})
        model = byov.bayesianize(net, {"classifier.*": byov.Gaussian(-2.0)})
        with model.draw(generator=torch.Generator().manual_seed(0)):
            model(**X).logits.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert_close(gradients[1][name], gradient)


def test_of_timms_networks_the_output_layer_may_have_one() -> None:
    timm = pytest.importorskip("timm")
    net = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=2)
    net.set_grad_checkpointing()
    assert byov.bayesianize(net, "pretrained").covered() == ["head.weight", "head.bias"]
    with pytest.raises(ValueError, match="Gradient checkpointing runs layers again"):
        byov.bayesianize(net, {byov.norm_layers: byov.EMP(2)})
