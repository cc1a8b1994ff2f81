"""A setting that fedraw 0.2 was the last to have is refused with one sentence, wherever it stands."""

from __future__ import annotations

from typing import Any

import pytest

from fedraw.core.removed import REMOVED
from fedraw.errors import BadInput
from fedraw.experiment.spec import Spec


def tables(setting: str) -> dict[str, Any]:
    """Return the tables of a spec with this setting: `section.key`, or `section.key = 'value'`."""
    key, _, value = setting.partition(" = ")
    section, name = key.split(".")
    return {section: {name: value.strip("'") or 1}}


@pytest.mark.parametrize("setting", REMOVED)
def test_a_removed_setting_is_named_with_its_last_version_and_a_remedy(setting: str) -> None:
    with pytest.raises(BadInput) as caught:
        Spec.from_dict(tables(setting))
    assert str(caught.value) == f"{setting} was removed after fedraw 0.2; {REMOVED[setting]}"
