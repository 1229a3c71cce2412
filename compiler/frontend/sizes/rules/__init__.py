"""Rules for padding, a file per family of ops."""

from __future__ import annotations

from mlirc.frontend.sizes.rules import at_bound as at_bound
from mlirc.frontend.sizes.rules import attention as attention
from mlirc.frontend.sizes.rules import gathers as gathers
from mlirc.frontend.sizes.rules import products as products
from mlirc.frontend.sizes.rules import reductions as reductions
from mlirc.frontend.sizes.rules import shapes as shapes
from mlirc.frontend.sizes.rules import windows as windows
from mlirc.frontend.sizes.rules.registry import RULES as RULES
from mlirc.frontend.sizes.rules.registry import Number as Number
