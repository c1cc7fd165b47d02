"""BayesianModule: a network whose parameters are drawn from q(θ)."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.func import functional_call

from byov.posterior.factor import Factor
from byov.posterior.family import Noise
from byov.posterior.prior import Prior
from byov.posterior.random import stream
from byov.posterior.transparent import Transparent

_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def lock_of(model: nn.Module) -> Any:
    """Return the reentrant lock that a thread holds while a draw is in the model's network."""
    return _LOCKS.setdefault(model, RLock())


def several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class BayesianModule(Transparent):
    """A network with q(θ) in place of some or all of its parameters; made by `bayesianize`.

    In train mode each call uses one draw for the whole call; in eval mode it uses the posterior mean. `net` is the
    network itself without its covered parameters, which are passed to it for the duration of a call. Attributes that
    this module does not have are looked up in the network, whose methods run under the draw or the mean like a call.
    """

    q: nn.ModuleList
    sigma_is_trained: bool = True
    """False if σ was computed, not trained (`byov.SWAG`, `byov.laplace`): it has no start to have moved from."""

    def __init__(self, net: nn.Module, factors: list[Factor], prior: Prior, shared_draw: bool, keys: list[str]) -> None:
        super().__init__()
        self.net = net
        self.q = nn.ModuleList(factors)
        self.shared_draw = shared_draw
        self._keys = tuple(keys)
        # A module that occurs twice gets its tensors once, under its first name. If it got them twice,
        # `functional_call` would take the first draw for the original tensor, restore that, and leave a draw behind.
        first = {module: prefix for prefix, module in net.named_modules()}
        self._first = {prefix: first[module] for prefix, module in net.named_modules(remove_duplicate=False)}
        self._held: list[Noise] | None = None
        self._at_mean = False
        # DDP broadcasts rank 0's buffers, so this number is the same on all ranks, whatever their seeds.
        self.register_buffer("stream_seed", torch.tensor(torch.initial_seed() % (1 << 62)), persistent=False)
        self._stream: int | None = None
        self.calls = 0
        if self._device().type != "meta":  # meta tensors would lose the moments
            prior.to(self._device())
        prior.attach(self)
        self.prior = prior
        self.take_signature()

    # Noise and draws

    def noise(self, generator: Generator | None = None) -> list[Noise]:
        """Draw the noise of one draw, by factor; `tensors(noise)` returns the draw."""
        generator = self.source(generator)
        return [factor.noise(generator) for factor in self.factors]

    def noises(self, count: int, generator: Generator) -> list[list[Noise]]:
        """Return the result of `count` calls of `noise` with this generator, reading the factors only once."""
        parts = [(factor.family, factor.roles, factor.layout) for factor in self.factors]
        return [[family.noise(roles, layout, generator) for family, roles, layout in parts] for _ in range(count)]

    def source(self, generator: Generator | None = None) -> Generator | None:
        """Return the generator for the next draw's noise: the one given, or None for the global one.

        With several processes the default is this rank's own generator, or with `shared_draw` the same one on all
        ranks. Otherwise ranks with the same seed, as in most scripts, would draw the same noise. A compiled graph
        cannot hold a generator and uses the global one, so seed each rank differently, or enter `draw()`.
        """
        if generator is not None or not several_processes():
            return generator
        if torch.compiler.is_compiling():
            if self.shared_draw:
                raise RuntimeError("A shared draw inside torch.compile needs `with model.draw():` around the call.")
            return None
        if self._stream is None:
            seed = self.get_buffer("stream_seed")
            self._stream = stream(int(seed.item()), 0 if self.shared_draw else 1 + dist.get_rank())
        self.calls += 1
        return Generator(self._device()).manual_seed(stream(self._stream, self.calls))

    @contextmanager
    def draw(self, generator: Generator | None = None, noise: list[Noise] | None = None) -> Iterator[BayesianModule]:
        """Hold one draw for all calls inside the block, in train and eval mode.

        Only the noise is held: each call rebuilds the weights from it, so several backward passes, and even an
        optimizer step, may happen inside one block. The draw is held for all threads that call the model meanwhile.
        """
        before = self._held, self._at_mean
        self._held, self._at_mean = (self.noise(generator) if noise is None else noise), False
        try:
            yield self
        finally:
            self._held, self._at_mean = before

    @contextmanager
    def at_mean(self) -> Iterator[BayesianModule]:
        """Use the posterior mean inside the block, in train and eval mode."""
        before = self._held, self._at_mean
        self._held, self._at_mean = None, True
        try:
            yield self
        finally:
            self._held, self._at_mean = before

    # Calling the network

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call_with_weights("", args, kwargs)

    def call_with_weights(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the network, or its method of this name, with a draw or the mean in place."""
        noise = self._held
        if noise is None and self.training and not self._at_mean:
            noise = self.noise()
        tensors = self.tensors(noise)
        # Two threads in one network would see each other's draws, and leave them behind.
        with nullcontext() if torch.compiler.is_compiling() else lock_of(self):
            if name:
                if noise is None:  # the mean may share q's memory
                    copies = {id(tensor): tensor.clone() for tensor in tensors.values()}  # one per tie
                    tensors = {key: copies[id(tensor)] for key, tensor in tensors.items()}
                out, tensors = self._method(name, tensors, args, kwargs)
            else:
                out = functional_call(self.net, tensors, args, kwargs, tie_weights=False)  # ties are passed twice
        if self.training and noise is not None:
            for factor, part in zip(self.factors, noise, strict=True):
                factor.keep_buffers(part, tensors)
        return out

    def tensors(self, noise: list[Noise] | None = None) -> dict[str, Tensor]:
        """Return one draw by name, or the mean without noise; tied weights appear under each module's name for them."""
        named: dict[str, Tensor] = {}
        for i, factor in enumerate(self.factors):
            named |= factor.at_mean() if noise is None else factor.draw(noise[i])
        return {name: tensor for name, tensor in named.items() if self.is_first_name(name)}

    def is_first_name(self, name: str) -> bool:
        """Return whether `tensors` uses this name: for a module that occurs twice, only the first name counts."""
        return self._first_name(name) == name

    # Statistics of q

    def sample(self, n: int, generator: Generator | None = None) -> dict[str, Tensor]:
        """Return n draws of the covered parameters, stacked, by the network's own names."""
        if n < 1:
            raise ValueError(f"sample needs at least one draw, not {n}.")
        draws = [self.tensors(self.noise(generator)) for _ in range(n)]
        return {name: torch.stack([draw[name] for draw in draws]) for name in self.covered()}

    def mean(self) -> dict[str, Tensor]:
        """Return E[θ] of the covered parameters, by the network's own names."""
        return self._named("flat_mean")

    def std(self) -> dict[str, Tensor]:
        """Return the standard deviation of each covered weight."""
        return self._named("flat_std")

    def snr(self) -> dict[str, Tensor]:
        """Return |μ|/σ of each covered weight; infinite where σ is 0 and μ is not, 0 where both are."""
        mean, std = self.mean(), self.std()
        return {name: torch.where(mean[name] == 0, 0.0, mean[name].abs() / std[name]) for name in mean}

    def kl(self, prior: Prior | None = None, points: bool = False) -> Tensor:
        """Compute KL(q ‖ prior) in nats, summed over the covered weights; the default prior is that of `bayesianize`.

        For the mixtures it is equation (6) of the patching paper without its constant. `points=True` adds the last two
        sums of that equation, the quadratic term of the parameters without a posterior.
        """
        prior = self.prior if prior is None else prior
        Prior.check(prior)
        total = torch.stack(
            [factor.kl(*prior.moments(i, factor.layout)) for i, factor in enumerate(self.factors)]
        ).sum()
        if points:
            for i, (name, point) in enumerate(self.points(), start=len(self.q)):
                mean, std = prior.point_moments(i, name, tuple(point.shape))
                total = total + 0.5 * ((point - mean) / std).square().sum()
        return total

    def covered(self) -> list[str]:
        """Return the names of the parameters that have a posterior."""
        return [slot.name for factor in self.factors for slot in factor.layout.slots]

    def points(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters without a posterior (points), with their names."""
        return list(self.net.named_parameters())

    # Saving

    def point(self) -> nn.Module:
        """Return the plain network at the posterior mean: a copy as it was before `bayesianize`, including ties."""
        net = copy.deepcopy(self.net)
        modules = dict(net.named_modules(remove_duplicate=False))
        for factor in self.factors:
            mean = factor.at_mean()
            restored = [(slot.names, nn.Parameter(mean[slot.name].detach().clone())) for slot in factor.layout.slots]
            for names, tensor in [*restored, *(((name,), mean[name].detach().clone()) for name in factor.buffer_names)]:
                for name in names:
                    prefix, _, leaf = name.rpartition(".")
                    setattr(modules[prefix], leaf, tensor)
        return net

    def point_state_dict(self) -> dict[str, Tensor]:
        """Return the state at the posterior mean under the network's own keys, for loading into the plain network."""
        state = {**self.net.state_dict(), **{k: v.detach().clone() for k, v in self.tensors().items()}}
        return {key: state[self._first_name(key)] for key in self._keys}

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> None:
        """Save to a folder that `byov.load` reads, with a model card; the options are those of `byov.sharing.save`."""
        from byov.sharing.folder import save

        save(self, folder, **options)

    def push_to_hub(self, repo_id: str, *, hub: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Save to a repository on the Hugging Face Hub; return the commit's address.

        `hub` holds what `huggingface_hub`'s `push_to_hub` takes: private, token, branch, create_pr, commit_message.
        """
        from byov.sharing.folder import save
        from byov.sharing.hub import push

        return push(lambda folder: save(self, folder, **options), repo_id, **(hub or {}))

    def spec(self) -> StateSpec:
        """Return what a state must match to be loaded here: families, parameters and the kind of prior."""
        return StateSpec.of(self)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        with lock_of(self):  # not while a prediction's draw is in the network
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        with lock_of(self):
            return super().load_state_dict(*args, **kwargs)

    def get_extra_state(self) -> Tensor:
        return self.spec().encode()

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: `_load_from_state_dict` has already compared it."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        self.spec().check(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        # A copy made inside a `draw()` block must not keep its draw.
        return {**self.__dict__, "_held": None, "_at_mean": False}

    def __deepcopy__(self, memo: dict[int, Any]) -> BayesianModule:
        with lock_of(self):  # not while a prediction's draw is in the network
            memo[id(self)] = new = self.__class__.__new__(self.__class__)
            new.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return new

    # Helpers

    def __repr__(self) -> str:
        """Show the layers with the parameters that q holds: without its bias a layer would print bias=False."""
        modules = dict(self.net.named_modules())
        names = (name.rpartition(".") for factor in self.factors for slot in factor.layout.slots for name in slot.names)
        own = [(modules[prefix]._parameters, leaf) for prefix, _, leaf in names if prefix in modules]
        with lock_of(self):
            empty = [(place, leaf) for place, leaf in own if leaf in place and place[leaf] is None]
            try:
                for place, leaf in empty:
                    place[leaf] = nn.Parameter(torch.empty(0, device="meta"))
                return super().__repr__()
            finally:
                for place, leaf in empty:
                    place[leaf] = None

    def _first_name(self, name: str) -> str:
        prefix, dot, leaf = name.rpartition(".")
        return f"{self._first.get(prefix, prefix)}{dot}{leaf}"

    @property
    def factors(self) -> list[Factor]:
        """Return the factors of q, one per family."""
        return list(self.q)  # type: ignore[arg-type]

    def _named(self, what: str) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for factor in self.factors:
            named |= factor.layout.split(getattr(factor, what)())
        return named

    def _device(self) -> torch.device:
        return next(self.q[0].parameters()).device


@dataclass(frozen=True)
class StateSpec:
    """Identity of a saved state: a state of another family is rejected before anything is loaded.

    It holds the families, a digest of the parameters that each covers and of the points, and the kind of prior.
    """

    families: tuple[str, ...]
    covers: tuple[str, ...]
    prior: str

    @classmethod
    def of(cls, model: BayesianModule) -> StateSpec:
        layouts = [[(slot.name, slot.shape) for slot in factor.layout.slots] for factor in model.factors]
        layouts.append([(name, tuple(point.shape)) for name, point in model.points()])
        return cls(
            families=tuple(repr(factor.family) for factor in model.factors),
            covers=tuple(sha256(repr(layout).encode()).hexdigest()[:16] for layout in layouts),
            prior=type(model.prior).__name__,
        )

    def encode(self) -> Tensor:
        """Encode it as bytes in a tensor, which safetensors and `weights_only` loading accept."""
        return torch.tensor(list(json.dumps(self.__dict__).encode()), dtype=torch.uint8)

    @classmethod
    def decode(cls, state: Tensor) -> StateSpec:
        raw = json.loads(bytes(state.tolist()))
        return cls(tuple(raw["families"]), tuple(raw["covers"]), raw["prior"])

    def check(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise unless `state` was saved by a model like this one."""
        if f"{prefix}_extra_state" not in state:
            raise ValueError(
                "This is not the state of a BayesianModule: load a plain network's state before bayesianize, "
                "and its weights become the means."
            )
        other = StateSpec.decode(state[f"{prefix}_extra_state"])
        if other.families != self.families:
            theirs, ours = (" and ".join(families) for families in (other.families, self.families))
            raise ValueError(f"The state is of {theirs}, but the model has {ours}.")
        if other.covers != self.covers:
            raise ValueError("The state comes from a network with other parameters or other rules than this model.")
        if other.prior != self.prior:
            raise ValueError(f"The state was saved with a {other.prior} prior, but the model has a {self.prior}.")
