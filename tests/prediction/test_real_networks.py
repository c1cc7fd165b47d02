"""Networks of Hugging Face and torchvision as they are, small; and inputs as people have them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import mlp, seeded
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchvision.models.segmentation.fcn import FCN, FCNHead

import byov

from .networks import by_hand, same

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
IDS = torch.randint(3, 30, (4, 5), generator=seeded())


def bert(**more: Any) -> nn.Module:
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=8, **SMALL, **more)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=30, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )


def distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=30, max_position_embeddings=8, dim=8, n_layers=1, n_heads=2, hidden_dim=8, num_labels=3
    )
    return transformers.DistilBertForTokenClassification(config)


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=16, patch_size=8, num_labels=3, **SMALL)
    )


def segmentation() -> nn.Module:
    class Backbone(nn.Conv2d):
        def forward(self, x: Tensor) -> Any:
            return {"out": super().forward(x)}

    return FCN(Backbone(3, 16, 3, stride=2), FCNHead(16, 4))


TEXT = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
REAL: dict[str, tuple[Any, Any, str, int, str]] = {
    "bert": (bert, TEXT, "classification", 1, "classifier.*"),
    "gpt2": (gpt2, TEXT, "token", 2, "transformer.ln_f.*"),
    "distilbert": (distilbert, TEXT, "token", 2, "classifier.*"),
    "vit": (vit, {"pixel_values": torch.randn(4, 3, 16, 16, generator=seeded())}, "classification", 1, "classifier.*"),
    "fcn": (segmentation, {"x": torch.randn(4, 3, 8, 8, generator=seeded())}, "segmentation", 1, "classifier.4.*"),
}


def drawn(model: byov.BayesianModule, x: dict[str, Tensor], dim: int, samples: int = 6) -> Tensor:
    """A loop by hand, over the logits."""
    generator, draws = seeded(), []
    model.eval()
    for _ in range(samples):
        with torch.no_grad(), model.draw(generator=generator):
            out = model(**x)
        draws.append(out["out" if "out" in out else "logits"].softmax(dim))
    return torch.stack(draws)


@pytest.mark.parametrize("cover", ["all", "last"])
@pytest.mark.parametrize("kind", REAL)
def test_a_real_network_is_predicted_as_by_hand(kind: str, cover: str) -> None:
    make, x, task, dim, last = REAL[kind]
    model = byov.bayesianize(make(), byov.Gaussian(-4.0) if cover == "all" else {last: byov.Gaussian(-2.0)})
    expected = drawn(model, x, dim)
    for strategy in ("auto", "loop"):
        found = byov.predict(model, x, 6, strategy, generator=seeded(), keep=True)
        assert found.task == task
        assert_close(found.draws, expected, rtol=0, atol=1e-6)
        assert_close(found.mean.sum(dim), torch.ones_like(found.mean.sum(dim)))
        head = strategy == "auto" and cover == "last" and kind not in ("gpt2", "fcn")
        assert found.strategy == ("head" if head else "loop")
    loader = [{name: value[i : i + 3] for name, value in x.items()} for i in (0, 3)]
    assert_close(byov.predict(model, loader, 6, generator=seeded()).mean, expected.mean(0))


def test_what_a_tokenizer_gives() -> None:
    model = byov.bayesianize(bert(num_labels=3), byov.Gaussian(-4.0))
    batch = transformers.BatchEncoding({**TEXT, "labels": torch.zeros(4, dtype=torch.long)})
    same(byov.predict(model, batch, 5, generator=seeded()), byov.predict(model, TEXT, 5, generator=seeded()))
    same(byov.predict(model, IDS, 5, generator=seeded()), byov.predict(model, TEXT, 5, generator=seeded()), 1e-6)
    with pytest.raises(TypeError, match="A batch is a tensor or a mapping of tensors"):
        byov.predict(model, transformers.BatchEncoding({"input_ids": IDS.tolist()}), 5)
    with pytest.raises(ValueError, match="2 inputs of one batch or 2 batches: name the inputs in a mapping"):
        byov.predict(model, tuple(TEXT.values()), 5)


def test_a_configuration_says_what_the_problem_is() -> None:
    several = byov.predict(bert(num_labels=3, problem_type="multi_label_classification"), TEXT)
    assert several.task == "multilabel"
    assert several.entropy.shape == (4, 3)
    assert byov.predict(bert(num_labels=1, problem_type="regression"), TEXT).task == "regression"
    with pytest.raises(ValueError, match="one number per position"):
        byov.predict(bert(num_labels=1), TEXT)
    net, hidden = distilbert(), lambda out: out.hidden_states[-1]
    net.config.output_hidden_states = True
    with pytest.raises(ValueError, match="add task='token'"):  # what a function takes out has no name to go by
        byov.predict(net, TEXT, output=hidden)


# Inputs


class Two(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.a(a)) + self.b(b)


def test_several_inputs(strategy: Any) -> None:
    model, a, b, y = byov.bayesianize(Two(), byov.Gaussian(-2.0)), torch.randn(7, 6), torch.randn(7, 4), torch.arange(7)
    expected = by_hand(model, {"a": a, "b": b}, 6)
    nested = [((a[:4], b[:4]), y[:4]), ([a[4:], b[4:]], y[4:])]
    for x in ((a, b), {"a": a, "b": b}, DataLoader(TensorDataset(a, b, y), 3), TensorDataset(a, b), nested):
        found = byov.predict(model, x, 6, strategy, generator=seeded(), keep=True)
        assert_close(found.draws, expected)
    stopped = byov.predict(model, (a, b), 40, strategy, tolerance=0.05, generator=seeded())
    assert_close(stopped.mean, byov.predict(model, {"a": a, "b": b}, 40, tolerance=0.05, generator=seeded()).mean)
    with pytest.raises(ValueError, match="needs 2 inputs, not 3; pass several batches as a list"):
        byov.predict(model, (a, b, y), 6)
    with pytest.raises(ValueError, match="needs 2 inputs, but the loader gives 1"):
        byov.predict(model, DataLoader(TensorDataset(a)), 6)


class Stream(IterableDataset[Tensor]):
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.x)


def read_only(x: Tensor) -> np.ndarray:
    array = x.double().numpy()
    array.flags.writeable = False
    return array


GIVEN: dict[str, Any] = {
    "an array": read_only,  # whose floating-point numbers become the network's
    "an array by columns": lambda x: np.asfortranarray(x.numpy()),
    "an array backwards": lambda x: x.flip(0).numpy()[::-1],
    "a mapping of arrays": lambda x: {"input": x.numpy()},
    "arrays": lambda x: [x[:2].numpy(), (x[2:].numpy(), None)],
    "a mapping with labels": lambda x: {"input": x, "labels": torch.arange(70)},  # which the network does not take
    "mappings with labels": lambda x: [{"input": x, "labels": torch.arange(70)}],
    "a data set": lambda x: TensorDataset(x, torch.arange(70)),
    "a stream": Stream,
}


@pytest.mark.parametrize("kind", GIVEN)
def test_inputs_as_people_have_them(kind: str) -> None:
    model, x = byov.bayesianize(mlp(), byov.Gaussian(-3.0)), torch.randn(70, 6)
    found = byov.predict(model, GIVEN[kind](x), 5, generator=seeded())
    same(found, byov.predict(model, x, 5, generator=seeded()), 1e-6)


def test_inputs_that_are_odd() -> None:
    model, x = byov.bayesianize(mlp(), byov.Gaussian(-3.0)), torch.randn(5, 6)
    with pytest.raises(TypeError, match="unexpected keyword argument 'extra'"):
        byov.predict(model, {"input": x, "extra": x})
    for empty in (TensorDataset(x[:0]), Stream(x[:0])):
        with pytest.raises(ValueError, match="The loader is empty: there is nothing to predict"):
            byov.predict(model, empty, 5)
    words = byov.predict(nn.Embedding(9, 3), np.arange(4, dtype=np.int32))
    assert words.mean.shape == (4, 3)
    net, labelled = bert(num_labels=3), {**TEXT, "labels": torch.zeros(4, dtype=torch.long)}  # which it takes
    same(byov.predict(net, labelled), byov.predict(net, TEXT))


class Detector(nn.Module):
    """Takes a list of images of any size, as torchvision's do; `boxes`: and returns what they do."""

    def __init__(self, boxes: bool = False) -> None:
        super().__init__()
        self.conv, self.boxes = nn.Conv2d(3, 3, 3), boxes

    def forward(self, images: list[Tensor], targets: Any = None) -> Any:
        scores = [self.conv(image).mean((1, 2)) for image in images]
        return [{"boxes": score, "scores": score} for score in scores] if self.boxes else torch.stack(scores)


def test_a_list_of_images_is_one_input() -> None:
    images = [(4 * i + 0.1) * torch.randn(3, 8, 8 + i) for i in range(5)]
    model = byov.bayesianize(Detector(), byov.Gaussian(-2.0))
    whole = byov.predict(model, images, 50, generator=seeded())
    assert whole.mean.shape == (5, 3)
    for strategy in ("loop", "vmap"):
        loader: Any = [(tuple(images[:2]), ({}, {})), (images[2:], [{}, {}, {}])]
        same(byov.predict(model, loader, 50, strategy, generator=seeded()), whole, 1e-6)
    stopped = byov.predict(model, images, 200, tolerance=0.02, generator=seeded())
    assert len(set(stopped.samples.tolist())) > 1
    with pytest.raises(TypeError, match="A detector's boxes differ in number and order"):
        byov.predict(byov.bayesianize(Detector(boxes=True), byov.Gaussian()), images)


def test_batches_that_differ_in_length_are_refused() -> None:
    model = byov.bayesianize(distilbert(), byov.Gaussian(-4.0))
    with pytest.raises(ValueError, match=r"the same shape after dimension 0, not \[\(4, 3\), \(5, 3\)\]: pad them"):
        byov.predict(model, [{"input_ids": IDS}, {"input_ids": IDS[:, :4]}], 3)
