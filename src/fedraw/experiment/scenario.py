"""One seed of an experiment, ready to run: its clients, strategy, training and arrival law."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.rarity import far_above_median, rarity_scores
from fedraw.core.sums import Sums, labels_below
from fedraw.core.text import several
from fedraw.core.types import ClientId
from fedraw.data.dataset import Inputs
from fedraw.errors import BadInput
from fedraw.experiment.calibrating import labels_left_out, refuse_uncalibrated
from fedraw.experiment.clients import Clients, draw_clients, unknown_labels
from fedraw.experiment.conditions import flights_of, founders, member_changes, members_of
from fedraw.experiment.costs import ClientCosts, CostMeter, client_costs, with_costs
from fedraw.experiment.divergence import rate_note
from fedraw.experiment.options import DEFAULTS, Options
from fedraw.experiment.parts import NO_PARTS, Parts, digest, with_plugins
from fedraw.experiment.sections import Drift
from fedraw.experiment.spec import Spec, spec_settings_of
from fedraw.experiment.training import (
    make_head,
    make_network,
    refuse_empty_sums,
    refuse_with_sums,
)
from fedraw.learning.losses import CROSS_ENTROPY
from fedraw.simulation.arrivals import ArrivalLaw, Fixed, Recorded, jitter, poisson, stand_ins
from fedraw.simulation.executors.base import Executor
from fedraw.simulation.loop import HandOut, Scheduled, Simulation
from fedraw.simulation.membership import Change
from fedraw.strategies.catalog import spec_name
from fedraw.strategies.protocol import Declared, Setup, Strategy

# The number of evaluations, or somewhat more, of a run that ends when every client was heard.
MOST_EVALUATIONS = 100
NOBODY_TRAINS = (
    "clients send sums of fixed features and do not train: the settings of local training, a model "
    "and a training function have no effect, and the model is a linear layer"
)

if TYPE_CHECKING:
    from fedraw.learning.training import Trainer
    from fedraw.learning.weights import LoadedWeights


@dataclass(frozen=True, eq=False)
class Scenario:
    """Everything that one seed of an experiment needs.

    `trainer` is None in a training-free run. `loaded` says which weights the initial model was
    loaded from; it is None if the model was drawn. `drift` is the change of the clients' data.
    """

    spec: Spec
    seed: int
    clients: Clients
    strategy: Strategy[Any]
    setup: Setup
    trainer: Trainer | None = None
    loaded: LoadedWeights | None = None
    drift: Scheduled | None = None
    changes: tuple[Change, ...] = ()  # joins and leaves
    costs: ClientCosts | None = None
    parts: Parts = NO_PARTS  # with those that the spec names in its plugins
    given: Parts = NO_PARTS  # only those that were given in Python

    @classmethod
    def of(
        cls, spec: Spec, seed: int, parts: Parts | None = None, options: Options = DEFAULTS
    ) -> Scenario:
        """Draw the clients, make the model and the strategy of one seed."""
        given, streams = parts or NO_PARTS, Streams(seed)
        parts = with_plugins(spec, given)
        strategy = parts.strategy or spec.make_strategy()
        payload = strategy.needs.payload
        if payload is not None:
            refuse_with_sums(spec, spec_name(strategy))
        clients = draw_clients(spec, streams, parts, options, payload is not None)
        dataset = clients.dataset
        trainer, loaded, layout = None, None, None
        model = np.zeros(0, np.float32)
        if spec.training.kind != "none":
            if not dataset.has_inputs:
                raise BadInput(
                    f"dataset {dataset.name!r} has labels and no inputs, so there is nothing to "
                    "train on; set training.kind = 'none', or name a dataset with inputs"
                )
            if payload is not None:
                network = make_head(spec, payload, dataset, streams)
            else:
                network = make_network(spec, parts, dataset, streams, options.data_root)
            trainer, loaded, model = network.trainer, network.loaded, network.initial
            layout = trainer.layout
            if spec.calibration is not None:
                refuse_uncalibrated(trainer, dataset)
        if not dataset.has_labels and strategy.needs.label_evidence is not None:
            raise BadInput(
                f"{spec_name(strategy)!r} goes by labels, and dataset {dataset.name!r} has targets "
                "of a float type and no labels; for classes, give whole numbers or names as "
                "labels; for a regression, give groups, or use another method"
            )
        costs = None
        if spec.costs is not None:
            sent = None
            if payload is not None:
                sent = payload.layout(layout).size * payload.dtype.itemsize
            costs = client_costs(spec, clients, model.nbytes, streams, sent)
            clients = with_costs(clients, costs)
        if payload is not None:
            refuse_empty_sums(clients, payload)
        changes = member_changes(spec, clients, streams)
        there = founders(clients.claimed, changes)
        rate = spec.training.sgd().lr if parts.train is None else spec.training.chosen_lr
        setup = Setup(model, there, layout, dataset.label_names, rate)
        drift = None
        if spec.drift is not None:
            drift = _drift(spec.drift, spec.run.events, clients)
        return cls(
            spec,
            seed,
            clients,
            strategy,
            setup,
            trainer,
            loaded,
            drift,
            tuple(changes),
            costs,
            parts,
            given,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What every result has to say.

        This is how the data differ from the release, what was loaded, and which labels the clients
        or the test set do not know.
        """
        loss, evidence = self.spec.training.loss, self.strategy.needs.label_evidence
        own: tuple[str, ...] = () if self.loaded is None else (str(self.loaded),)
        if loss != CROSS_ENTROPY and evidence in ("checked", "inferred"):
            own += (
                f"labels = {evidence!r} was calibrated with cross-entropy; with training.loss = "
                f"{loss!r} updates show held labels less often",
            )
        if self.spec.calibration is not None:
            own += labels_left_out(self.clients)
        if self.strategy.needs.payload is not None:
            own += (NOBODY_TRAINS,)
        return (*self.clients.dataset.notes, *own, *self.cautions, *self._sites())

    @property
    def cautions(self) -> tuple[str, ...]:
        """The notes about a likely mistake: labels that somebody does not know, an absurd rate."""
        trains = self.parts.train is None and self.strategy.needs.payload is None
        rate = rate_note(self.spec) if trains else ()
        return (*rate, *unknown_labels(self.clients), *self._sums_cautions())

    def _sums_cautions(self) -> tuple[str, ...]:
        """Return what keeps sums from telling anything: a floor, too few events, constants."""
        payload, clients = self.strategy.needs.payload, self.clients
        if not isinstance(payload, Sums):
            return ()
        few = labels_below(clients.table, payload)
        events, inputs = self.spec.run.events, clients.dataset.inputs
        cases = (
            (bool(few), f"no client has {payload.floor} samples of some labels, which the floor of "
             f"strategy {spec_name(self.strategy)!r} leaves out: {several(map(str, few))}"),
            (events < len(clients.table), f"run.events = {events} is less than the "
             f"{len(clients.table)} clients, so the run ends before all were heard"),
            (_constant(inputs), "the features of all samples are the same, so the model can only "
             "tell how common labels are; check the samples and the feature map"),
        )  # fmt: skip
        return tuple(words for is_so, words in cases if is_so)

    @property
    def evaluate_every(self) -> int:
        """The arrivals between two evaluations.

        A model that is final once every client was heard is evaluated after each message, or about
        100 times. The interval of the spec could be longer than the run.
        """
        if not self.strategy.needs.finishes:
            return self.spec.run.evaluate_every
        return max(1, len(self.clients.table) // MOST_EVALUATIONS)

    def _sites(self) -> tuple[str, ...]:
        """Return which clients stand for the sites of a recorded federation."""
        trace = self.spec.speeds.trace
        names = stand_ins(Path(trace), self.clients.table.clients) if trace else {}
        if not names:
            return ()
        pairs = several((f"{client} for {site}" for site, client in names.items()), most=10)
        return (f"clients stand for the sites of {Path(trace or '').parent.name}: {pairs}",)

    def tables(self) -> dict[str, Any]:
        """Return the spec as run: only this seed, and the names of the user's Python parts."""
        tables, given = self.spec.to_dict(), self.given
        names = dict(given.names)
        tables["run"]["seeds"] = [self.seed]
        if given.data is not None:
            names["data"] = self.clients.dataset.name
            tables["data"] = {"name": names["data"]}
        if given.partition is not None or self.clients.dataset.owners is not None:
            tables["partition"] = {
                "kind": names.get("partition", "given"),
                "clients": len(self.clients.table),
                "local_test": self.spec.partition.local_test,
            }
        if given.speeds is not None:
            tables["speeds"]["kind"] = names["speeds"] = "given"
        if given.model is not None:
            tables["training"]["model"] = names["model"]
            tables["training"].pop("stem", None)
        if given.train is not None:
            tables["training"]["kind"] = names["train"]
        if given.strategy is not None:
            settings = spec_settings_of(given.strategy)
            names["strategy"] = spec_name(given.strategy)
            tables["strategy"] = {"name": names["strategy"], **settings}
        return tables | ({"parts": names} if names else {})

    def sources(self) -> dict[str, str]:
        """Return the SHA-256 of the source of each part that is the user's own."""
        given = self.given.names
        named = [(key, part) for key, part in self.parts.brought() if key not in given]
        return {k: digest(part) for k, part in named if k != "data"} | self.given.sources

    def cost_meter(self) -> CostMeter | None:
        """Return the meter that adds up the costs of the run; None if it has none."""
        if self.costs is None or self.spec.costs is None:
            return None
        return CostMeter(self.spec.costs, self.costs, self.clients.table.clients)

    def simulation(self, executor: Executor) -> Simulation:
        """Return the simulation at time zero."""
        streams, run = Streams(self.seed), self.spec.run
        first = _rare(self.clients.claimed) if run.receivers == "rare-first" else ()
        return Simulation(
            self.strategy,
            self.setup,
            _law(self.spec, self.clients, streams),
            executor,
            HandOut(run.concurrency, first, streams.generator("receivers")),
            () if self.drift is None else (self.drift,),
            flights_of(self.spec, self.clients, self.changes, streams, self.costs),
            members_of(self.clients.claimed, self.changes),
        )


def _drift(wanted: Drift, events: int, clients: Clients) -> Scheduled:
    """Return the arrival after which data change, and the counts that clients then declare."""
    declared: list[Declared] = []
    if wanted.declared == "again":
        before, after = (epoch.table.counts() for epoch in clients.epochs)
        declared = [Declared(c, own) for c, own in after.items() if own != before[c]]
    return Scheduled(max(1, round(wanted.at * events)), declared)


def _constant(inputs: Inputs) -> bool:
    """Return whether all samples are the same; a few nearly always tell that they are not."""
    first = inputs[:1]
    return bool(len(first) and (inputs[:256] == first).all() and (inputs[:] == first).all())


def _rare(table: LabelTable) -> list[ClientId]:
    """Return the clients whose score is far above the median, by what the server knows."""
    pairs = zip(table.clients, far_above_median(rarity_scores(table)), strict=True)
    return [client for client, rare in pairs if rare]


def _law(spec: Spec, clients: Clients, streams: Streams) -> ArrivalLaw:
    if clients.trace is not None:
        return Recorded(clients.table.clients, clients.trace)
    match spec.speeds.arrivals:
        case "fixed":
            return Fixed(clients.seconds)
        case "jitter":
            assert spec.speeds.jitter is not None  # Speeds has a default for this law
            return jitter(clients.seconds, streams, spec.speeds.jitter)
        case _:
            return poisson(clients.seconds, streams)
