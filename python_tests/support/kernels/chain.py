"""A kernel of three launches, each of which may begin before the one in front of it has ended."""

from __future__ import annotations

T = "memref<1000xf32>"
WAIT = "nvvm.griddepcontrol wait"


def chain(wait: str = WAIT) -> str:
    """y = 2 (2 (2 x)), by three launches through two workspaces; `wait`: what waits for the launch before."""
    launch = (
        "gpu.launch_func @k_gpu::@{name} blocks in (%grid, %one, %one) threads in (%block, %one, %one) "
        "args(%{source} : {T}, %{target} : {T}) {attributes}"
    )
    calls = "\n".join(
        launch.format(name=name, source=source, target=target, attributes=attributes, T=T)
        for name, source, target, attributes in (
            ("k_first", "x", "a", ""), ("k_step", "a", "b", "{mlirc.dependent}"), ("k_step", "b", "y", "{mlirc.dependent}"),
        )
    )  # fmt: skip
    functions = "\n".join(
        f"""gpu.func @{name}(%s: {T}, %t: {T}) kernel {{
      %n = arith.constant 1000 : index
      %threads = arith.constant 128 : index
      %tid = gpu.thread_id x
      %bid = gpu.block_id x
      %base = arith.muli %bid, %threads : index
      %i = arith.addi %base, %tid : index
      %in = arith.cmpi ult, %i, %n : index
      {before}
      nvvm.griddepcontrol launch_dependents
      scf.if %in {{
        %v = memref.load %s[%i] : {T}
        %w = arith.addf %v, %v : f32
        memref.store %w, %t[%i] : {T}
      }}
      gpu.return
    }}"""
        for name, before in (("k_first", ""), ("k_step", wait))
    )
    return f"""module attributes {{gpu.container_module}} {{
  func.func @k(%x: {T}, %y: {T}) attributes {{mlirc.kernel}} {{
    %one = arith.constant 1 : index
    %grid = arith.constant 8 : index
    %block = arith.constant 128 : index
    %a = memref.alloc() : {T}
    %b = memref.alloc() : {T}
    {calls}
    return
  }}
  gpu.module @k_gpu {{
    {functions}
  }}
}}
"""
