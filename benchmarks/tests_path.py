"""Makes the package of what the tests share, `support`, importable: `import tests_path  # noqa: F401`."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "python_tests"

if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))
