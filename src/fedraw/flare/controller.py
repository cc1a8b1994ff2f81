"""A FLARE controller that runs an asynchronous federation.

FLARE's threads put replies into a queue. The workflow's thread hands them to the coordinator one at
a time, which writes each update to disk before it takes effect.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, TaskCompletionStatus
from nvflare.apis.controller_spec import Task as FlareTask
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec
from nvflare.app_common.app_constant import AppConstants

from fedraw.core.types import Vector
from fedraw.errors import BadInput, FedrawError
from fedraw.flare.messages import FIELDS, Arrays, MessageCodec, Template, read_strategy
from fedraw.server.coordinator import Coordinator, open_federation
from fedraw.server.problems import Problems
from fedraw.server.results import EvaluationOutput
from fedraw.server.settings import ServerSettings
from fedraw.server.tasks import Failure, Reply, Task, TaskKind

LOGGER = logging.getLogger("fedraw.server")

# FLARE's names of the tasks. A site's script sees only the first.
TASK_NAMES: dict[TaskKind, str] = {
    "train": AppConstants.TASK_TRAIN,
    "summary": "fedraw_summary",
    "evaluate": "fedraw_evaluate",
}
# A site's job process sends a heartbeat every 10 seconds, except in FLARE's simulator. FLARE itself
# reports an absent site only after 10 minutes.
HEARTBEAT = "jobHeartbeat"
LONGEST_SILENCE = 30.0
# FLARE's return codes that a site does not cause.
TRANSPORT_CODES = (ReturnCode.COMMUNICATION_ERROR, ReturnCode.SERVER_NOT_READY, ReturnCode.TIMEOUT)


class FederationController(Controller):  # type: ignore[misc]
    """Begins a federation in the folder of the settings, or continues the one in that folder.

    All arguments are plain values, because FLARE writes them to the job's configuration.

    Args:
        model: The function that returns the initial model (a state_dict or a mapping from names to
            arrays), as "module:function". The module belongs to the job's files for the server.
        settings: The settings of the server; see ServerSettings. A relative `folder` is in the
            server's workspace.
        strategy: The strategy's `name` and its settings.
        evaluate: The function that evaluates arrays on the server's own test set, as
            "module:function". It returns a Recall, a mapping from names of metrics to numbers, or
            both as a tuple.
        statistics: Names of the batch-norm statistics, which are averaged instead of added to; by
            default all names that end in running_mean or running_var.

    """

    def __init__(
        self,
        model: str,
        settings: dict[str, Any],
        strategy: dict[str, Any] | None = None,
        evaluate: str = "",
        statistics: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.strategy = strategy
        self.evaluate = evaluate
        self.statistics = statistics
        ServerSettings.read(settings, "settings")
        read_strategy(strategy)
        self._replies: SimpleQueue[tuple[str, Reply]] = SimpleQueue()
        self._waiting: tuple[str, Reply] | None = None  # a reply that is not handed in yet
        self._sent: dict[str, FlareTask] = {}
        self._last_contact: dict[str, float] = {}
        self._with_heartbeat: set[str] = set()
        self._problems = Problems()

    # Methods that FLARE calls

    def set_communicator(self, communicator: WFCommSpec) -> None:
        """Record each contact of a site: a request for a task, a reply, or a heartbeat."""
        super().set_communicator(communicator)
        client_is_active = communicator.client_is_active

        def is_active(client_name: str, reason: str, fl_ctx: FLContext) -> None:
            self._last_contact[client_name] = time.monotonic()
            if reason == HEARTBEAT:
                self._with_heartbeat.add(client_name)
            client_is_active(client_name, reason, fl_ctx)

        communicator.client_is_active = is_active

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Open the federation; a mistake in the settings ends the job with its reason."""
        try:
            self._open(Path(fl_ctx.get_engine().get_workspace().get_root_dir()))
        except FedrawError as error:
            self.system_panic(str(error), fl_ctx)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run until the federation has ended or the job is aborted."""
        if abort_signal.triggered:
            return
        chosen, coordinator = self._chosen, self._coordinator
        try:
            while coordinator.finished is None and not abort_signal.triggered:
                self._turn(fl_ctx)
            if coordinator.finished is not None:
                LOGGER.info("training has ended: %s", coordinator.finished)
            else:
                LOGGER.info("job aborted; a new job with the same folder continues from here")
            close = partial(coordinator.close, time.monotonic())
            while not self._problems.try_write("the end", close) and not abort_signal.triggered:
                time.sleep(chosen.poll)
            self._drain(abort_signal, fl_ctx)
        except FedrawError as error:
            self.system_panic(str(error), fl_ctx)
        finally:
            coordinator.abandon()
            self.cancel_all_tasks(fl_ctx=fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: `control_flow` has closed the folder."""

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """Report a reply that is too late, so that the log has it."""
        self._replies.put(("", Failure(f"{client.name} replied too late", site_fault=False)))

    # One turn

    def _turn(self, fl_ctx: FLContext) -> None:
        coordinator, poll = self._coordinator, self._chosen.poll
        nodes = self._report_online(time.monotonic())
        for task in coordinator.tasks(time.monotonic()):
            self._send(task, nodes[task.node], fl_ctx)
        if self._waiting is None:
            with suppress(Empty):
                self._waiting = self._replies.get(timeout=poll)
        else:  # the disk was full
            time.sleep(poll)
        if self._waiting is not None:
            message_id, reply = self._waiting
            hand_in = partial(coordinator.receive, message_id, reply, time.monotonic())
            if self._problems.try_write("an update", hand_in):
                self._sent.pop(message_id, None)
                self._waiting = None
        if coordinator.finished is None:
            now = time.monotonic()
            self._report_online(now)  # a reply may take long to handle, which is no absence
            self._problems.try_write("the log", lambda: coordinator.tick(now))
            self._cancel_expired(fl_ctx)

    def _drain(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Wait for sites in training, because FLARE reports a stopped script as an error."""
        for message_id in [known for known, task in self._sent.items() if not task.client_tasks]:
            self._withdraw(message_id, fl_ctx)
        if self._sent:
            LOGGER.info("waiting for %d outstanding replies", len(self._sent))
        until = time.monotonic() + self._chosen.deadline
        while self._sent and time.monotonic() < until and not abort_signal.triggered:
            with suppress(Empty):
                self._sent.pop(self._replies.get(timeout=self._chosen.poll)[0], None)

    def _report_online(self, now: float) -> dict[int, str]:
        """Report the online sites to the coordinator; return their names by node.

        A connected site is online if it had a contact lately or never sends heartbeats.
        """
        since = now - LONGEST_SILENCE
        nodes = {
            node_of(site): site
            for site, last in list(self._last_contact.items())
            if (last > since or site not in self._with_heartbeat)
            and self.get_client_disconnect_time(site) is None
        }
        self._coordinator.online(nodes.keys(), now)
        return nodes

    def _send(self, task: Task, site: str, fl_ctx: FLContext) -> None:
        message_id = str(task.number)
        message = FlareTask(
            name=TASK_NAMES[task.kind],
            data=self._shareable(task),
            result_received_cb=partial(self._received, message_id, task),
            task_done_cb=partial(self._done, message_id),
        )
        self._coordinator.sent(task, message_id)
        self._sent[message_id] = message
        self.send(message, fl_ctx, targets=[site])

    def _shareable(self, task: Task) -> Shareable:
        meta = {FIELDS: self._codec.fields(task)}
        if task.model is None:
            return DXO(DataKind.METRICS, data={}, meta=meta).to_shareable()
        arrays = self._codec.arrays(task.model)
        shareable = DXO(DataKind.WEIGHTS, data=dict(arrays), meta=meta).to_shareable()
        shareable.set_header(AppConstants.CURRENT_ROUND, task.version)
        return shareable

    def _cancel_expired(self, fl_ctx: FLContext) -> None:
        """Withdraw tasks whose replies would no longer be accepted."""
        awaited = set(self._coordinator.message_ids)
        for message_id in [known for known in self._sent if known not in awaited]:
            self._withdraw(message_id, fl_ctx)

    def _withdraw(self, message_id: str, fl_ctx: FLContext) -> None:
        task = self._sent.pop(message_id)
        _remove_duplicates(task)
        self.cancel_task(task, fl_ctx=fl_ctx)

    # Callbacks in FLARE's threads

    def _received(
        self, message_id: str, task: Task, client_task: ClientTask, fl_ctx: FLContext
    ) -> None:
        result, client_task.result = client_task.result, None
        _remove_duplicates(client_task.task)
        self._replies.put((message_id, self._reply(task, client_task.client.name, result)))

    def _reply(self, task: Task, site: str, result: Shareable) -> Reply:
        code = result.get_return_code()
        if code != ReturnCode.OK:
            reason = f"its job process replied {code!s:.60}; see its log"
            return Failure(reason, site_fault=code not in TRANSPORT_CODES)
        try:
            content = from_shareable(result)
        except Exception as error:  # a site's values must not end the server
            return Failure(f"unreadable reply: {error!s:.200}", malformed=True)
        is_difference = content.data_kind == DataKind.WEIGHT_DIFF
        fields = content.meta.get(FIELDS)
        return self._codec.read_reply(task, site, content.data, fields, is_difference)

    def _done(self, message_id: str, task: FlareTask, fl_ctx: FLContext) -> None:
        """Report a task that FLARE has abandoned."""
        if task.completion_status not in (TaskCompletionStatus.OK, TaskCompletionStatus.CANCELLED):
            reason = f"FLARE abandoned the task: {task.completion_status.value}"
            self._replies.put((message_id, Failure(reason, site_fault=False)))

    # Opening

    def _open(self, workspace: Path) -> None:
        table = {**self.settings, "folder": workspace / self.settings.get("folder", "federation")}
        self._chosen = chosen = ServerSettings.read(table, "settings")
        model = find_function(self.model, "model")()
        template = Template.of(model, self.statistics)
        method = read_strategy(self.strategy)
        self._codec = codec = MessageCodec(template, method.needs)
        evaluate: Callable[[Arrays], EvaluationOutput] | None = None
        if self.evaluate:
            evaluate = find_function(self.evaluate, "evaluate")

        def evaluate_vector(vector: Vector) -> EvaluationOutput:
            assert evaluate is not None
            # A copy of the mapping, not of the arrays, because the user may modify it.
            return evaluate(dict(codec.arrays(vector)))

        trained = {segment.name for segment in template.layout.segments}
        self._coordinator: Coordinator = open_federation(
            method,
            lambda: template.read(template.model),
            chosen,
            template.layout,
            dtypes={name: template.model[name].dtype.name for name in trained},
            constants={k: array for k, array in template.model.items() if k not in trained},
            evaluate=None if evaluate is None else evaluate_vector,
            engine=f"nvflare {version('nvflare')}",
        )


def _remove_duplicates(task: FlareTask) -> None:
    """Keep one entry for the site that executes the task.

    FLARE lists a site twice if it asks for its task again, and FLARE's task monitor then crashes
    when the task ends.
    """
    del task.client_tasks[1:]


def node_of(site: str) -> int:
    """Return the coordinator's node number for a FLARE site.

    It depends only on the site's certified name, so it survives restarts.
    """
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:7])


def find_function(path: str, key: str) -> Callable[..., Any]:
    """Return the function named by `path`, in the form "module:function"; `key` names the setting.

    >>> find_function("math:sqrt", "model")(9)
    3.0
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, ValueError, AttributeError) as problem:
        raise BadInput(
            f"{key} = {path!r}: {problem}; write module:function, and add the module to the job's "
            f"files for the server (Python searches in {', '.join(sys.path[:3])})"
        ) from None
    if not callable(found):
        raise BadInput(f"{key} = {path!r} is {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
