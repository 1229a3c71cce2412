"""A helper process that has imported what lowering needs before it is asked for anything: `python -m
mlirc.driver.ready`."""

from __future__ import annotations

from mlirc.driver.workers import main


def prepare() -> None:
    """Imports it, and makes the process's MLIR context."""
    import mlirc.backend.plan_builder
    import mlirc.backend.ptx
    import mlirc.frontend.lower
    import mlirc.schedule.registry
    import mlirc.scripts.graph  # noqa: F401
    from mlirc.mlir import context

    context()


if __name__ == "__main__":
    main(prepare)
