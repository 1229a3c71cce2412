"""How models are named that are no files. Needs neither PyTorch nor MLIR."""

from __future__ import annotations

import re

FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:function
