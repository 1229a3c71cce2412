"""`python -m mlirc` is `mlirc`."""

import sys

from mlirc.tools.mlirc import main

sys.exit(main())
