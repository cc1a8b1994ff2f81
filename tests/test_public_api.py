from __future__ import annotations

import fedraw


def test_what_is_exported_is_what_is_visible() -> None:
    assert fedraw.__all__ == sorted(fedraw.__all__, key=lambda name: (not name.isupper(), name))
    modules = {"cli", "core", "data", "errors", "experiments", "learning", "metrics", "report"}
    modules |= {
        "analysis",
        "disk",
        "flower",
        "privacy",
        "records",
        "server",
        "simulation",
        "strategies",
    }
    visible = {name for name in vars(fedraw) if not name.startswith("_")} - modules
    assert visible == set(fedraw.__all__)


def test_the_command_and_the_package_have_one_version() -> None:
    from importlib.metadata import version

    assert version("fedraw") == fedraw.__version__
