"""A job recipe for FLARE: fedraw's controller on the server, the user's script at the sites."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor, ExecutionMode
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from fedraw.errors import BadInput
from fedraw.flare.controller import FederationController

# The format in which scripts of a framework exchange models with FLARE.
FORMATS = {
    FrameworkType.PYTORCH: ExchangeFormat.PYTORCH,
    FrameworkType.NUMPY: ExchangeFormat.NUMPY,
}


class FederationRecipe(Recipe):  # type: ignore[misc]
    """An asynchronous federation as a FLARE job.

    Args:
        name: The name of the job.
        model: The function that returns the initial model, as "module:function".
        train_script: The script that trains at the sites. It calls `fedraw.flare.join`.
        settings: The settings of the server; see ServerSettings. A relative `folder` is in the
            server's workspace.
        strategy: The strategy's `name` and its settings, such as {"name": "fedraw", "buffer": 3}.
        evaluate: The function that evaluates arrays on the server's own test set, as
            "module:function". It returns a Recall, a mapping from names of metrics to numbers, or
            both as a tuple.
        statistics: Names of the batch-norm statistics, which are averaged instead of added to.
        files: Files that the script and the functions import; they go to the server and the sites.
        train_args: Command-line arguments of the script.
        min_sites: FLARE starts the job once this many sites are connected, and aborts it when fewer
            remain.
        task_interval: Seconds that a site waits before it asks for its next task.
        params_transfer_type: FULL, or DIFF if sites send differences. FLARE's privacy filters need
            DIFF.
        framework: The framework of the script; `flare.receive()` returns torch tensors or NumPy
            arrays.
        launch_external_process: Whether the script runs in a separate process.
        command: The command of that process; the script's name is appended.

    """

    def __init__(  # noqa: PLR0913 - as FLARE's own recipes
        self,
        *,
        model: str,
        train_script: str,
        settings: dict[str, Any],
        strategy: dict[str, Any] | None = None,
        evaluate: str = "",
        statistics: Sequence[str] | None = None,
        name: str = "fedraw",
        files: Sequence[str] = (),
        train_args: str = "",
        min_sites: int = 1,
        task_interval: float = 0.5,
        params_transfer_type: TransferType = TransferType.FULL,
        framework: FrameworkType = FrameworkType.PYTORCH,
        launch_external_process: bool = False,
        command: str = "python3 -u",
    ) -> None:
        for file in (train_script, *files):
            _check_file(file)
        job = FedJob(name=name, min_clients=min_sites)
        job.set_app_packages(["fedraw"])  # installed on every machine, so it is not sent
        names = None if statistics is None else list(statistics)
        job.to_server(FederationController(model, settings, strategy, evaluate, names))
        super().__init__(job)
        self.train_args = train_args
        self._files = [train_script, *files]
        name_of_script = Path(train_script).name
        common = {
            "params_exchange_format": FORMATS[framework],
            "server_expected_format": ExchangeFormat.NUMPY,
            "params_transfer_type": params_transfer_type,
        }
        if launch_external_process:
            words = [*shlex.split(command), f"custom/{name_of_script}", *shlex.split(train_args)]
            mode = ExecutionMode.EXTERNAL_PROCESS
            self._executor = ClientAPIExecutor(mode, command=words, **common)
        else:
            self._executor = ClientAPIExecutor(
                ExecutionMode.IN_PROCESS,
                task_script_path=name_of_script,
                task_script_args=train_args,
                **common,
            )
        self.add_server_config({"server": {"task_request_interval": task_interval}})
        for file in files:
            job.add_file_to_server(file)

    def _prepare_client_apps(self) -> None:
        self._job.to_clients(self._executor)
        for file in self._files:
            self._job.add_file_to_clients(file)


def _check_file(file: str) -> None:
    """Refuse a missing file, and a file with the name of a standard module of Python."""
    path = Path(file)
    if not path.exists():
        raise BadInput(f"{file} does not exist; give the job's files as paths on this machine")
    if path.stem in sys.stdlib_module_names:
        raise BadInput(f"{file} would hide Python's standard module {path.stem!r}; rename it")
