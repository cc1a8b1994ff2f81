"""The convergence theorem on a run: estimates of its constants and of the terms of its proof.

A run of FedRAW keeps every global model, so that all quantities of the proof can be computed
afterwards: the gradient of the influence-weighted objective F̄ = Σ π_i F_i, the staleness
displacement D, the pseudo-gradient P̃, and the fluctuation u of the buffer's gradient around ∇F̄.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.core.rarity import rarity_scores
from fedraw.core.types import Floats, Ints, Vector
from fedraw.errors import BadInput
from fedraw.experiment.options import Options
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.experiment.training import executor_of
from fedraw_studies.theory.bound import Constants, largest_rho, largest_step
from fedraw_studies.theory.dense import DenseNetwork, Gradient

# The number of models of the run at which the gradients of all clients are computed.
CHECKPOINTS = 60
# The number of these at which the curvature is measured too, which takes more time.
_CURVATURES = 4


class Aggregation(NamedTuple):
    """One aggregation: the clients of its updates, their weights and their start versions."""

    clients: list[int]  # positions
    weights: Floats
    starts: Ints


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A finished run with all its global models; aggregation t leads from model t to t + 1."""

    spec: Spec
    models: Sequence[Vector]
    aggregations: Sequence[Aggregation]
    scores: Floats
    network: DenseNetwork
    inputs: Sequence[Floats]  # of each client
    labels: Sequence[Ints]

    @property
    def influence(self) -> Floats:
        """π: the mean weight of each client over the aggregations."""
        total = np.zeros(len(self.inputs))
        for own in self.aggregations:
            np.add.at(total, own.clients, own.weights)
        return total / len(self.aggregations)

    @property
    def staleness(self) -> Ints:
        """The age in versions of every update in every aggregation."""
        return np.concatenate([t - own.starts for t, own in enumerate(self.aggregations)])

    @property
    def local_steps(self) -> Ints:
        """The number of local steps of each client."""
        training = self.spec.training
        return np.array([-(-len(own) // training.batch) * training.epochs for own in self.labels])

    def gradients(self, version: int) -> list[Gradient]:
        """Return the gradient of every client's loss at a global model."""
        model = self.models[version].astype(np.float64)
        pairs = zip(self.inputs, self.labels, strict=True)
        return [self.network.gradient(model, x, y) for x, y in pairs]


def record(spec: Spec, seed: int) -> Trajectory:
    """Run one seed of a spec with one slot per client, and keep every global model."""
    scenario = Scenario.of(spec, seed)
    layout = scenario.setup.layout
    if layout is None:
        raise BadInput("training.kind = 'none' has no model; the bound needs one")
    network = DenseNetwork.of(layout)
    position = {client: n for n, client in enumerate(scenario.clients.table.clients)}
    started: dict[int, int] = {}
    models, aggregations = [scenario.setup.model], []
    with executor_of(scenario, Options()) as executor:
        simulation = scenario.simulation(executor)
        for _ in range(spec.run.events):
            step = simulation.step()
            started[position[step.client]] = step.start_version
            if step.aggregated:
                inside = [position[client] for client in step.contents.clients]
                weights = np.array(step.contents.weights)
                starts = np.array([started[client] for client in inside])
                aggregations.append(Aggregation(inside, weights, starts))
                models.append(simulation.state.model)
    if not aggregations:
        raise BadInput(f"run.events = {spec.run.events} is too few to fill the buffer; use more")
    first = scenario.clients.epochs[0]
    inputs = [scenario.clients.dataset.inputs.take(own) for own in first.indices]
    flat = [own.reshape(len(own), -1).astype(np.float64) for own in inputs]
    scores = rarity_scores(scenario.clients.claimed)
    return Trajectory(spec, models, aggregations, scores, network, flat, first.labels)


@dataclass(frozen=True)
class Measured:
    """Measurements of the theorem's constants and of the quantities in its proof."""

    gap: float  # F̄ of the first model, which is at least F̄*
    smoothness: float  # bound on the curvature of every client's loss
    curvature: float  # the largest that was seen
    local_variance: float
    heterogeneity: float
    gradient_bound: float
    local_steps: int  # of the largest client
    fewest_steps: int
    rate: float
    worst_staleness: int
    mean_staleness: float
    rho: float  # supremum over the buffers that can occur
    rho_seen: float
    buffer: int
    aggregations: int
    loss: tuple[float, float]  # F̄ of the first and of the last model
    gradient: float  # mean ‖∇F̄‖²
    displacement: float  # mean ‖D‖²
    worst_displacement: float
    worst_drift: float  # largest ‖θ^t − θ^(t−τ)‖² of an update in the buffer
    pseudo_gradient: float  # mean ‖P̃‖²
    buffer_variance: float  # mean ‖u‖²
    worst_buffer_variance: float
    dependence: float  # mean ⟨∇F̄, u⟩, which the proof assumes to be zero
    dependence_error: float  # its standard error over ten blocks of the run
    second_moment: float  # largest σ_l² + ‖∇F_i‖² of a client

    @property
    def admissible_rate(self) -> float:
        """The largest rate with η Q ≤ 1/(4L)."""
        return largest_step(self.smoothness, self.local_steps)

    def constants(self) -> Constants:
        """Return the theorem's constants; a rate that it does not admit raises BadInput."""
        return Constants(
            gap=self.gap,
            smoothness=self.smoothness,
            local_variance=self.local_variance,
            heterogeneity=self.heterogeneity,
            gradient_bound=self.gradient_bound,
            local_steps=self.local_steps,
            steps=self.rate,
            worst_staleness=self.worst_staleness,
            rho=self.rho,
            buffer=self.buffer,
            aggregations=self.aggregations,
        )


def measure(run: Trajectory, checkpoints: int = CHECKPOINTS) -> Measured:
    """Estimate the constants and the quantities of the proof.

    Suprema are maxima over the models at the checkpoints and over all clients.
    """
    places = np.unique(np.linspace(0, len(run.aggregations) - 1, checkpoints).round()).astype(int)
    influence = run.influence
    seen = [_Checkpoint.of(run, int(t), influence) for t in places]
    moved = np.array([_movement(run, t) for t in range(len(run.aggregations))])
    ages, steps = run.staleness, run.local_steps
    products = np.array([own.product for own in seen])
    blocks = [part.mean() for part in np.array_split(products, min(10, len(products)))]
    buffer = len(run.aggregations[0].clients)
    seen_rho = max(buffer * float(own.weights @ own.weights) for own in run.aggregations)
    last = run.gradients(len(run.aggregations))
    final = float(sum(pi * own.loss for pi, own in zip(influence, last, strict=True)))
    return Measured(
        gap=seen[0].loss,
        smoothness=_smoothness(run),
        curvature=_curvature(run, places),
        local_variance=max(own.noise for own in seen),
        heterogeneity=max(own.heterogeneity for own in seen),
        gradient_bound=max(own.largest for own in seen),
        local_steps=int(steps.max()),
        fewest_steps=int(steps.min()),
        rate=run.spec.training.lr,
        worst_staleness=int(ages.max()),
        mean_staleness=float(ages.mean()),
        rho=largest_rho(run.scores, buffer).reached,
        rho_seen=seen_rho,
        buffer=buffer,
        aggregations=len(run.aggregations),
        loss=(seen[0].loss, final),
        gradient=float(np.mean([own.square for own in seen])),
        displacement=float(moved[:, 0].mean()),
        worst_displacement=float(moved[:, 0].max()),
        worst_drift=float(moved[:, 1].max()),
        pseudo_gradient=float(moved[:, 2].mean()),
        buffer_variance=float(np.mean([own.fluctuation for own in seen])),
        worst_buffer_variance=max(own.fluctuation for own in seen),
        dependence=float(products.mean()),
        dependence_error=float(np.std(blocks, ddof=1) / np.sqrt(len(blocks))),
        second_moment=max(own.second_moment for own in seen),
    )


class _Checkpoint(NamedTuple):
    """A summary of the clients' gradients at one model."""

    loss: float  # F̄
    square: float  # ‖∇F̄‖²
    largest: float  # max ‖∇F_i‖²
    heterogeneity: float  # mean ‖∇F_i − ∇f‖²
    noise: float  # the largest variance of a client's mini-batch gradient
    second_moment: float
    fluctuation: float  # ‖u‖²
    product: float  # ⟨∇F̄, u⟩

    @classmethod
    def of(cls, run: Trajectory, version: int, influence: Floats) -> _Checkpoint:
        every = run.gradients(version)
        each = np.array([own.gradient for own in every])
        squares = np.square(each).sum(1)
        weighted = influence @ each
        own = run.aggregations[version]
        fluctuation = own.weights @ each[own.clients] - weighted
        batch = run.spec.training.batch
        noise = [_noise(g.spread, len(y), batch) for g, y in zip(every, run.labels, strict=True)]
        return cls(
            float(influence @ [own.loss for own in every]),
            float(weighted @ weighted),
            float(squares.max()),
            float(np.square(each - each.mean(0)).sum(1).mean()),
            max(noise),
            float((squares + noise).max()),
            float(fluctuation @ fluctuation),
            float(weighted @ fluctuation),
        )


def _noise(spread: float, samples: int, batch: int) -> float:
    """Return the variance of the gradient of the smallest batch, drawn without replacement."""
    smallest = samples % batch or min(batch, samples)
    if samples == 1:
        return 0.0
    return spread / smallest * (samples - smallest) / (samples - 1)


def _movement(run: Trajectory, t: int) -> tuple[float, float, float]:
    """Return ‖D‖², the largest drift of an update in the buffer, and ‖P̃‖² of aggregation t."""
    own, here = run.aggregations[t], run.models[t].astype(np.float64)
    apart = np.array([run.models[start] for start in own.starts], np.float64) - here
    displacement = own.weights @ apart
    pseudo = here + displacement - run.models[t + 1]
    return (
        float(displacement @ displacement),
        float(np.square(apart).sum(1).max()),
        float(pseudo @ pseudo),
    )


def _smoothness(run: Trajectory) -> float:
    bounds = [bound for x in run.inputs if (bound := run.network.smoothness(x)) is not None]
    if len(bounds) < len(run.inputs):
        raise BadInput(
            f"training.model = {run.spec.training.model!r} has ReLU layers, so its loss is not "
            "smooth and the theorem does not apply; use 'linear'"
        )
    return max(bounds)


def _curvature(run: Trajectory, places: npt.NDArray[np.int_]) -> float:
    """Return the largest curvature of a client's loss at some models of the run."""
    rng, some = np.random.default_rng(0), places[:: max(1, len(places) // _CURVATURES)]
    found = 0.0
    for version in some:
        model = run.models[int(version)].astype(np.float64)
        for x, y in zip(run.inputs, run.labels, strict=True):
            start = rng.normal(size=model.size)
            found = max(found, run.network.curvature(model, x, y, start))
    return found
