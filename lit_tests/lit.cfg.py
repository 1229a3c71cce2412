"""Configuration of the FileCheck tests: `lit lit_tests` from the top of the repository."""

import os
import shutil
import sys

import lit.formats

config.name = "mlirc"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir", ".test"]  # noqa: F821
config.excludes = ["inputs"]  # noqa: F821
config.test_source_root = os.path.dirname(__file__)  # noqa: F821
config.test_exec_root = os.path.join(os.path.dirname(__file__), "Output")  # noqa: F821

bin_dir = os.path.dirname(sys.executable)
filecheck = shutil.which("filecheck", path=bin_dir) or shutil.which("filecheck") or "filecheck"
for name, command in {
    # -P: a test's folder must not shadow a package.
    "%mlirc-opt": f"{sys.executable} -P -m mlirc.tools.mlirc_opt",
    "%mlirc-run": f"{sys.executable} -P -m mlirc.tools.mlirc_run",
    "%mlirc": f"{sys.executable} -P -m mlirc.tools.mlirc",
    "%filecheck": filecheck,
    "%python": f"{sys.executable} -P",
}.items():
    config.substitutions.append((name + r"\b", command))  # noqa: F821
for name in ("HOME", "MLIRC_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR"):
    if name in os.environ:
        config.environment[name] = os.environ[name]  # noqa: F821
