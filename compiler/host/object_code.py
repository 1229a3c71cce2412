"""Object files of what MLIR's JIT compiled: written, and loaded without MLIR's or LLVM's work."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from mlirc.host.bounds import NOTE, Strays


def object_file(engine: Any) -> bytes:
    """What an ExecutionEngine compiled, as an ELF object file. Raises OSError where there is no /proc."""
    file = os.memfd_create("code")  # LLVM ends the process where a file cannot be written
    try:
        engine.dump_to_object_file(f"/proc/self/fd/{file}")
        size = os.fstat(file).st_size
        data = os.pread(file, size, 0)
    finally:
        os.close(file)
    if not data.startswith(b"\x7fELF"):
        raise OSError("MLIR wrote no object file")
    return data


def load_object(code: bytes, function: str, strays: Strays) -> tuple[Any, Callable[[Any], None]]:
    """The engine that holds an object file's code, and its `function` as the engine that compiled it looks it up: of an
    array of pointers to arguments. The code runs as it is, and is not looked at."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(f"declare void @{NOTE}(i64, i64)")
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True, codemodel="large")
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.add_global_mapping(module.get_function(NOTE), strays.address)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.get_function_address(f"_mlir__mlir_ciface_{function}"))
    return engine, call
