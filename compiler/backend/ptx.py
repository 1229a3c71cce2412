"""LLVM IR to PTX with llvmlite's NVPTX back end: one kernel at a time, then one file out of many kernels.

`python -m mlirc.backend.ptx kernel.gpu.mlir --target sm_90a` compiles one `gpu`-level kernel and prints its PTX.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm_binding

from mlirc.backend.kernel import CompiledKernel, Launch, launches_from_gpu_module
from mlirc.backend.lowering import lower_to_llvm_ir
from mlirc.backend.packed import unpack_halves
from mlirc.backend.target_check import least_isa
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.targets import DEFAULT_TARGET, Target, get_target

TRIPLE = "nvptx64-nvidia-cuda"


_OPTIONS = (
    "--nvptx-short-ptr",  # pointers into shared memory are 32 bits wide: half the registers for addresses
    # What a body computes of its loads stays between them. Sunk to the guard of a store, it is computed when all have
    # been read: 255 registers and 1,800 bytes of a stack for a window of 5 x 5, and 167 without.
    "--instcombine-code-sinking=false",
)


@functools.cache
def _target_machine(name: str, ptx_isa: int):
    for option in _OPTIONS:
        llvm_binding.set_option("mlirc", option)
    llvm_binding.initialize_all_targets()
    llvm_binding.initialize_all_asmprinters()
    backend = llvm_binding.Target.from_triple(TRIPLE)
    return backend.create_target_machine(cpu=name, features=f"+ptx{ptx_isa}", opt=3)


def ptx_from_llvm(text: str, target: Target, name: str = "kernel") -> str:
    """Optimizes LLVM IR text (O3) and returns PTX; raises MlircError when LLVM rejects it."""
    machine = _target_machine(target.name, target.ptx_isa)
    try:
        module = llvm_binding.parse_assembly(text)
    except RuntimeError as e:
        raise MlircError(f"kernel {name}: LLVM rejects its IR: {' '.join(str(e).split())}") from e
    module.triple = TRIPLE
    module.data_layout = str(machine.target_data)
    options = llvm_binding.create_pipeline_tuning_options(speed_level=3)
    builder = llvm_binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return unpack_halves(machine.emit_assembly(module))


def kernel_name(gpu_module: ir.Module) -> str:
    """The symbol of the host function of one kernel's `gpu`-level module."""
    for op in gpu_module.body.operations:
        if op.operation.name == "func.func" and len(op.operation.regions[0].blocks):
            return ir.StringAttr(op.operation.attributes["sym_name"]).value
    raise MlircError("gpu level: the module has no host function: it needs one func.func with a body")


def entry_name(kernel: str, function: str) -> str:
    """The name in the PTX of a gpu.func of a kernel: it starts with the kernel's."""
    return function if function == kernel or function.startswith(f"{kernel}_") else f"{kernel}_{function}"


def _unique_entries(module: ir.Operation, name: str) -> None:
    """Gives every gpu.func a name that starts with its kernel's, so that many kernels fit in one PTX file."""
    inner = [op.operation for op in module.regions[0].blocks[0].operations]
    container = next((op for op in inner if op.name == "gpu.module"), None)
    if container is None:
        return
    outer = ir.StringAttr(container.attributes["sym_name"]).value
    renamed = {}
    for view in container.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "gpu.func":
            old = ir.StringAttr(op.attributes["sym_name"]).value
            if entry_name(name, old) != old:
                renamed[old] = entry_name(name, old)
                op.attributes["sym_name"] = ir.StringAttr.get(renamed[old])
    if renamed:
        _rename_launches(module, outer, renamed)


def _rename_launches(op: ir.Operation, outer: str, renamed: dict[str, str]) -> None:
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                inner = view.operation
                if inner.name == "gpu.launch_func":
                    old = ir.SymbolRefAttr(inner.attributes["kernel"]).value[-1]
                    fresh = renamed.get(old, old)
                    inner.attributes["kernel"] = ir.SymbolRefAttr.get([outer, fresh])
                _rename_launches(inner, outer, renamed)


def compile_kernel(gpu_module: ir.Module, target: Target) -> CompiledKernel:
    """Compiles one kernel's `gpu`-level module (a gpu.module and its host function) to LLVM IR and PTX.

    The module is changed only in that its gpu.funcs get names that start with the kernel's. On failure the MlircError
    names the kernel and says how to get its `gpu` level.
    """
    name = kernel_name(gpu_module)
    try:
        with gpu_module.context, ir.Location.unknown():
            _unique_entries(gpu_module.operation, name)
        launches, workspaces = launches_from_gpu_module(gpu_module)
        if not any(isinstance(x, Launch) for x in launches):  # results without elements, or copies alone
            return CompiledKernel(name=name, ptx="", llvm="", launches=launches, workspaces=workspaces)
        _check_launches(name, [x for x in launches if isinstance(x, Launch)], target)
        isa = least_isa(gpu_module, target)
        llvm_text = lower_to_llvm_ir(gpu_module, target, name)
        ptx = ptx_from_llvm(llvm_text, replace(target, ptx_isa=isa), name)
    except MlircError as e:
        raise MlircError(f"{e} (mlirc ... --emit gpu prints the level that this step was given)") from e
    return CompiledKernel(name=name, ptx=ptx, llvm=llvm_text, launches=launches, workspaces=workspaces)


def _check_launches(name: str, launches: list[Launch], target: Target) -> None:
    for launch in launches:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if threads > 1024:
            raise MlircError(
                f"kernel {name}: {launch.symbol} asks for {threads} threads per block, at most 1024 fit: take fewer"
            )
        if launch.smem > target.max_smem:
            raise MlircError(
                f"kernel {name}: {launch.symbol} asks for {launch.smem} bytes of shared memory, {target.name} has "
                f"{target.max_smem} per block: use smaller tiles or fewer stages"
            )


_HEADER = re.compile(r"^\s*(//.*|\.version .*|\.target .*|\.address_size .*|)$")
_VERSION = re.compile(r"^\.version (\d+)\.(\d+)$", re.MULTILINE)
_SHARED = re.compile(r"^\.extern \.shared \.align (\d+) \.b8 (\w+)\[\];$")
_SYMBOL = re.compile(r"^\.visible \.(?:entry|func)(?:\s*\([^)]*\))? (\w+)\(", re.MULTILINE)


def merge_ptx(texts: list[str], target: Target) -> str:
    """One PTX file out of several kernels' PTX: one header, of the newest ISA that a kernel needs, one declaration of
    each dynamic shared array.

    Raises MlircError when two kernels define the same symbol.
    """
    shared: dict[str, int] = {}
    bodies: list[str] = []
    seen: set[str] = set()
    for text in texts:
        lines = text.splitlines()
        start = 0
        while start < len(lines) and _HEADER.match(lines[start]):
            start += 1
        body = []
        for line in lines[start:]:
            if match := _SHARED.match(line.strip()):
                shared[match[2]] = max(shared.get(match[2], 1), int(match[1]))
            elif not line.strip().startswith("// .globl"):
                body.append(line)
        for symbol in _SYMBOL.findall(text):
            if symbol in seen:
                raise MlircError(f"two kernels define {symbol}: give their functions different names")
            seen.add(symbol)
        bodies.append("\n".join(body).strip("\n"))
    isa = max([target.ptx_isa, *(10 * int(v[1]) + int(v[2]) for text in texts for v in _VERSION.finditer(text))])
    version = f".version {isa // 10}.{isa % 10}"
    header = f"{version}\n.target {target.name}\n.address_size 64\n"
    arrays = "".join(f".extern .shared .align {align} .b8 {name}[];\n" for name, align in sorted(shared.items()))
    return header + "\n" + (arrays + "\n" if arrays else "") + "\n\n".join(bodies) + "\n"


def find_ptxas() -> str | None:
    """Path of a ptxas: of the nvidia-cuda-nvcc package or on PATH; None when there is none."""
    for root in sys.path:
        for path in sorted(Path(root or ".").glob("nvidia/*/bin/ptxas")):
            return str(path)
    return shutil.which("ptxas")


def check_ptxas(ptx: str, target: Target) -> str:
    """Assembles PTX with ptxas and returns its report (registers, spills, shared memory); for tests only.

    Raises MlircError with ptxas's message when it rejects the text, or when there is no ptxas.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        raise MlircError("no ptxas: install the nvidia-cuda-nvcc package or put ptxas on PATH")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [ptxas, "-v", f"-arch={target.name}", "-o", str(Path(folder) / "kernel.cubin"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    if done.returncode:
        raise MlircError(f"ptxas rejects the PTX for {target.name}: {' '.join(report.split())[:600]}")
    return report


def main(argv: list[str] | None = None) -> int:
    """Compiles one `gpu`-level file and prints PTX (or LLVM IR with --llvm)."""
    import argparse

    from mlirc.mlir import parse

    parser = argparse.ArgumentParser(prog="mlirc.backend.ptx", description=main.__doc__)
    parser.add_argument("file")
    parser.add_argument("--target", default=DEFAULT_TARGET)
    parser.add_argument("--llvm", action="store_true", help="print LLVM IR instead of PTX")
    args = parser.parse_args(argv)
    try:
        kernel = compile_kernel(parse(Path(args.file).read_text(), args.file), get_target(args.target))
    except MlircError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(kernel.llvm if args.llvm else kernel.ptx)
    return 0


if __name__ == "__main__":
    sys.exit(main())
