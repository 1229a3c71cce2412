"""The layer of a cache that keeps nothing, in every version of transformers that is allowed."""

from __future__ import annotations

try:
    from transformers.cache_utils import DummyLayer
except ImportError:  # 5.17 has none yet: there, layers without attention have no entry of their own

    class DummyLayer:  # type: ignore[no-redef]
        """What keeps nothing."""

        supports_early_init = False
        is_compileable = True
        is_initialized = True
        keys = values = None


__all__ = ["DummyLayer"]
