"""What each operation does: a file per chapter of "Instruction Set" in the PTX ISA, or per part of one; a dialect that
has no chapter has a file of its own. How a file declares operations is in declare.py; all files here are found.

| file | PTX ISA | operations |
|---|---|---|
| integer_arithmetic | Integer Arithmetic, Extended-Precision | arith and math of integers but logic, dp2a and dp4a |
| logic_and_shift | Logic and Shift | arith.andi, ori, xori, shli, shrsi, shrui |
| floating_point | Floating-Point, Half Precision | arith and math of floats, nvvm's approximations |
| comparison_and_selection | Comparison and Selection | arith.cmpi, cmpf, select |
| conversion | Data Movement and Conversion: cvt, prmt | casts of arith and llvm, nvvm.convert, prmt |
| data_movement | the same: ld, st, cvta, mapa | loads and stores of memref, vector and llvm, pointers |
| asynchronous_copy | the same: cp.async | nvgpu.device_async, nvvm.cp.async |
| bulk_copy | the same: cp.async.bulk, st.bulk | nvvm.cp.async.bulk |
| tensor_copy | the same: cp.async.bulk.tensor | nvvm.cp.async.bulk.tensor, nvgpu.tma |
| votes_and_shuffles | the same: shfl; vote, match, redux, elect | what lanes of a warp tell each other |
| barriers | Parallel Synchronization: bar, barrier | gpu.barrier, nvvm.barrier, nvvm.bar.warp.sync |
| cluster_barrier | the same: barrier.cluster | nvvm.cluster.arrive, wait |
| mbarrier | the same: mbarrier | nvvm.mbarrier, nvgpu.mbarrier |
| fences | the same: membar, fence | llvm.fence, nvvm.fence, nvvm.memory.barrier |
| atomics | the same: atom, red | llvm.atomicrmw, cmpxchg, memref's read-modify-writes |
| griddepcontrol | the same: griddepcontrol | nvvm.griddepcontrol |
| warp_matrix | Warp Level Matrix | mma.sync, ldmatrix, stmatrix, movmatrix of nvvm and nvgpu |
| warpgroup_matrix | Asynchronous Warpgroup Level Matrix | nvvm.wgmma |
| inline_assembly | the same, with A in registers | llvm.inline_asm |
| setmaxnreg | Miscellaneous: setmaxnreg | nvvm.setmaxregister |
| hints | prefetch, nanosleep | what decides nothing that a thread can see |
| special_registers | Special Registers | gpu's ids, nvvm.read.ptx.sreg |
| registers | | constants, undefined values, llvm's structs |
| vector, memref, affine, scf | | the dialects |
"""
