"""FLARE in memory: its own communicator, shareables as FOBS's bytes, our site API, no processes.

In each step, every site asks for a task, as FLARE's client runner does, and replies. Faults can be
injected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

from fedraw.flare.controller import FederationController
from fedraw.flare.site import SiteAPI

flare_decomposers.register()
common_decomposers.register()


def over_the_wire(shareable: Shareable) -> Shareable:
    """The message after a round trip through its bytes."""
    arrived: Shareable = fobs.loads(fobs.dumps(shareable))
    return arrived


class ScriptAPI:
    """FLARE's client API for a script: it provides one task and accepts one result."""

    def __init__(self) -> None:
        self.task: Shareable | None = None
        self.result: Shareable | None = None

    def receive(self, timeout: float | None = None) -> FLModel | None:
        task, self.task = self.task, None
        return None if task is None else FLModelUtils.from_shareable(task)

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        self.result = FLModelUtils.to_shareable(model)


@dataclass
class MemorySite:
    """One site; `train` takes the received model and returns the model to send."""

    name: str
    train: Callable[[FLModel], FLModel]
    join: dict[str, Any]
    tamper: Callable[[str, Shareable], Any] = lambda kind, reply: None
    is_offline: bool = False
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inner = ScriptAPI()
        self.api = SiteAPI(self.inner, **self.join)

    def execute(self, name: str, task: Shareable) -> Shareable:
        self.asked.append(name)
        self.inner.task, self.inner.result = over_the_wire(task), None
        try:
            received = self.api.receive()
            if received is not None:
                self.api.send(self.train(received))
            assert self.inner.result is not None
            reply = self.inner.result
            changed = self.tamper(name, reply)
        except ArithmeticError:  # as FLARE replies for a script that raised
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return over_the_wire(changed if isinstance(changed, Shareable) else reply)


class MemoryEngine:
    """The parts of FLARE's server engine that a controller and its communicator use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.panic: list[str] = []
        self._manager = FLContextManager(self, "server", "job")

    def new_context(self) -> FLContext:
        return self._manager.new_context()

    def get_clients(self) -> list[Client]:
        return []

    def get_workspace(self) -> MemoryEngine:
        return self

    def get_root_dir(self) -> str:
        return str(self.root)

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == "_fatal_system_error":
            self.panic.append(str(fl_ctx.get_prop("__event_data__")))


@dataclass
class MemoryFlare:
    """Runs a server's workflow and its sites until the workflow ends."""

    controller: FederationController
    sites: list[MemorySite]
    root: Path
    # Called with (site, task id, task name, reply); returns how often the reply is submitted.
    times: Callable[[str, str, str, Shareable], int] = lambda *_: 1
    before: Callable[[], None] = lambda: None
    sign_of_life: str = "getTask"

    def run(self, seconds: float = 60.0) -> None:
        self.engine = MemoryEngine(self.root)
        self.communicator = WFCommServer()
        self.controller.set_communicator(self.communicator)
        self.abort = Signal()
        with self.engine.new_context() as fl_ctx:
            self.communicator.initialize_run(fl_ctx)
            self.controller.initialize(fl_ctx)
            if self.engine.panic:
                return
            flow = threading.Thread(target=self.controller.control_flow, args=(self.abort, fl_ctx))
            flow.start()
            until = time.monotonic() + seconds
            while flow.is_alive():
                self.before()
                for site in self.sites:
                    self._step(site)
                time.sleep(0.001)
                if time.monotonic() > until:
                    self.abort.trigger(True)
                    flow.join()
                    raise AssertionError("the federation has not ended")
            time.sleep(0.5)  # FLARE's monitor removes ended tasks five times a second
            self.monitor_was_alive = self.communicator._task_monitor.is_alive()
            self.communicator.finalize_run(fl_ctx)

    def _step(self, site: MemorySite) -> None:
        if site.is_offline:
            return
        client = Client(site.name, "token")
        with self.engine.new_context() as fl_ctx:
            self.communicator.client_is_active(site.name, self.sign_of_life, fl_ctx)
            name, task_id, data = self.communicator.process_task_request(client, fl_ctx)
            if not name:
                return
            data.set_header(ReservedHeaderKey.TASK_ID, task_id)
            reply = site.execute(name, data)
            reply.set_header(ReservedKey.TASK_ID, task_id)
            for _ in range(self.times(site.name, task_id, name, reply)):
                self.communicator.process_submission(client, name, task_id, reply, fl_ctx)
