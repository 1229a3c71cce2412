"""The dialect of our transform ops."""

from mlirc.mlir import ext


class Schedule(ext.Dialect, name="schedule"):  # type: ignore[call-arg]
    """The dialect object; ops join it through `transform_op`."""
