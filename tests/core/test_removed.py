"""A setting that fedraw 0.2 was the last to have is refused with one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from fedraw.core.removed import REMOVED
from fedraw.errors import BadInput
from fedraw.experiment.spec import Spec
from fedraw.server.settings import ServerSettings


def read(setting: str) -> Any:
    """Read a spec or a server's settings: `section.key`, or `section.key = 'value'`."""
    key, _, value = setting.partition(" = ")
    section, name = key.split(".")
    table = {name: value.strip("'") or 1}
    if section in ("fedraw", "settings"):
        return ServerSettings.read(table, section)
    return Spec.from_dict({section: table})


@pytest.mark.parametrize("setting", REMOVED)
def test_a_removed_setting_is_named_with_its_last_version_and_a_remedy(setting: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(setting)
    assert str(caught.value) == f"{setting} was removed after fedraw 0.2; {REMOVED[setting]}"
