"""What ncu calls the same thing on different chips, in different years, and on its two CSV pages.

Which name a report has is told by what is in it, never by a table of chips.
"""

from __future__ import annotations

_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
_ACTIVE = ".avg.pct_of_peak_sustained_active"

DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration_measured_user.sum")
SM = (f"sm__throughput{_ELAPSED}",)
MEMORY = (f"gpu__compute_memory_throughput{_ELAPSED}",)
DRAM = (f"gpu__dram_throughput{_ELAPSED}", f"dram__throughput{_ELAPSED}")
L2 = (f"lts__throughput{_ELAPSED}",)
L1 = (f"l1tex__throughput{_ELAPSED}", f"l1tex__throughput{_ACTIVE}")
DRAM_BYTES = ("dram__bytes.sum",)
DRAM_READ = ("dram__bytes_read.sum",)
DRAM_WRITE = ("dram__bytes_write.sum",)
DRAM_RATE = ("dram__bytes.sum.per_second",)
L2_HIT = ("lts__t_sector_hit_rate.pct",)
L1_HIT = ("l1tex__t_sector_hit_rate.pct",)
L2_SIZE = ("device__attribute_l2_cache_size",)
#: Of the same slices: what was asked of L2, and what L2 had to fetch from DRAM to answer.
L2_ASKED = (f"lts__t_sectors{_ELAPSED}",)
L2_FILLED = (f"lts__d_sectors_fill_device{_ELAPSED}",)
SECTORS_OF_A_LOAD = ("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",)
LOAD_SECTORS = ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",)
LOAD_REQUESTS = ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",)

SM_CLOCK = ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second")
WAVES = ("launch__waves_per_multiprocessor",)
REGISTERS = ("launch__registers_per_thread",)
SHARED_PER_BLOCK = ("launch__shared_mem_per_block_allocated", "launch__shared_mem_per_block")
THEORETICAL = ("sm__maximum_warps_per_active_cycle_pct",)
ACHIEVED = (f"sm__warps_active{_ACTIVE}",)
#: Blocks that fit on one SM, by what would stop the next one.
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks per SM": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
ISSUE_ACTIVE = ("smsp__issue_active.avg.pct_of_peak_sustained_active",)
LATENCY = ("smsp__average_warp_latency_per_inst_issued.ratio",)

#: Any use of the tensor pipe. They are read together: one that is 0 says nothing while another has a value.
TENSOR_PCT = (
    f"sm__pipe_tensor_cycles_active{_ELAPSED}",
    f"sm__pipe_tensor_cycles_active{_ACTIVE}",
    f"sm__inst_executed_pipe_tensor{_ELAPSED}",
    f"sm__inst_executed_pipe_tensor{_ACTIVE}",
    f"sm__pipe_tensor_op_hmma_cycles_active{_ELAPSED}",
    f"sm__pipe_tensor_op_hmma_cycles_active{_ACTIVE}",
    f"sm__pipe_tensor_op_imma_cycles_active{_ELAPSED}",
    f"sm__pipe_tensor_op_imma_cycles_active{_ACTIVE}",
    f"sm__inst_executed_pipe_tensor_op_hmma{_ACTIVE}",
    f"sm__inst_executed_pipe_tensor_op_imma{_ACTIVE}",
    f"sm__inst_executed_pipe_tensor_op_gmma{_ACTIVE}",
    f"sm__inst_executed_pipe_uniform_tensor{_ACTIVE}",
)
TENSOR_COUNT = (
    "sm__inst_executed_pipe_tensor.sum",
    "sm__inst_executed_pipe_tensor_op_hmma.sum",
    "sm__inst_executed_pipe_tensor_op_imma.sum",
    "sm__inst_executed_pipe_tensor_op_gmma.sum",
)
#: Counted operations by type of input, multiply and add each one.
TENSOR_OPS = "sm__ops_path_tensor_src_"
TENSOR_OPS_END = ".sum"

#: The pipes of an SM: what an engineer calls them, and the start of their metrics' names.
PIPES = {
    "tensor": (
        "sm__pipe_tensor_cycles_active",
        "sm__inst_executed_pipe_tensor",
        "sm__pipe_tensor_op_hmma_cycles_active",
    ),
    "FMA (FP32)": ("sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma"),
    "FMA heavy": ("sm__pipe_fmaheavy_cycles_active", "sm__inst_executed_pipe_fmaheavy"),
    "ALU": ("sm__pipe_alu_cycles_active", "sm__inst_executed_pipe_alu"),
    "FP64": ("sm__pipe_fp64_cycles_active", "sm__inst_executed_pipe_fp64"),
    "FP16": ("sm__inst_executed_pipe_fp16",),
    "XU (transcendental, conversion)": ("sm__inst_executed_pipe_xu",),
    "LSU (load/store)": ("sm__inst_executed_pipe_lsu",),
    "TEX": ("sm__inst_executed_pipe_tex",),
    "uniform": ("sm__inst_executed_pipe_uniform",),
    "issue slots": ("sm__issue_active", "sm__inst_issued", "sm__inst_executed"),
}
PIPE_ENDS = (_ELAPSED, _ACTIVE)

#: Warps that waited, for each instruction issued, by what for.
STALL_START = "smsp__average_warps_issue_stalled_"
STALL_END = "_per_issue_active.ratio"

#: (section or "", label, kind of unit) of the details page → the metric. The unit tells two "Memory Throughput"s apart.
LABELS: dict[tuple[str, str], str] = {
    ("Memory Throughput", "%"): MEMORY[0],
    ("Memory [%]", "%"): MEMORY[0],
    ("SOL Memory", "%"): MEMORY[0],
    ("Compute (SM) Throughput", "%"): SM[0],
    ("Compute (SM) [%]", "%"): SM[0],
    ("SM [%]", "%"): SM[0],
    ("SOL SM", "%"): SM[0],
    ("DRAM Throughput", "%"): DRAM[0],
    ("SOL DRAM", "%"): DRAM[0],
    ("L2 Cache Throughput", "%"): L2[0],
    ("SOL L2 Cache", "%"): L2[0],
    ("L1/TEX Cache Throughput", "%"): L1[1],
    ("SOL L1/TEX Cache", "%"): L1[1],
    ("Duration", "ns"): DURATION[0],
    ("Elapsed Cycles", "cycle"): "gpc__cycles_elapsed.max",
    ("SM Frequency", "hz"): SM_CLOCK[0],
    ("DRAM Frequency", "hz"): "dram__cycles_elapsed.avg.per_second",
    ("Memory Throughput", "byte/s"): DRAM_RATE[0],
    ("L2 Hit Rate", "%"): L2_HIT[0],
    ("L1/TEX Hit Rate", "%"): L1_HIT[0],
    ("Local Memory Spilling Requests", ""): "derived__local_spilling_requests",
    ("Local Memory Spilling Request Overhead", "%"): "derived__local_spilling_requests_pct",
    ("One or More Eligible", "%"): ISSUE_ACTIVE[0],
    ("Warp Cycles Per Issued Instruction", "cycle"): LATENCY[0],
    ("Executed Instructions", "inst"): "smsp__inst_executed.sum",
    ("Waves Per SM", ""): WAVES[0],
    ("Registers Per Thread", "register/thread"): REGISTERS[0],
    ("# SMs", "SM"): "launch__sm_count",
    ("# SMs", ""): "launch__sm_count",
    ("Block Limit Barriers", "block"): LIMITS["barriers"],
    ("Block Limit SM", "block"): LIMITS["blocks per SM"],
    ("Block Limit Registers", "block"): LIMITS["registers"],
    ("Block Limit Shared Mem", "block"): LIMITS["shared memory"],
    ("Block Limit Warps", "block"): LIMITS["warps"],
    ("Theoretical Occupancy", "%"): THEORETICAL[0],
    ("Achieved Occupancy", "%"): ACHIEVED[0],
    ("Tensor Pipe Utilization", "%"): TENSOR_PCT[0],
}
#: Labels whose value may come without a unit (n/a): what they would have been.
UNIT_OF_LABEL: dict[str, str] = {label: unit for label, unit in LABELS if label != "Memory Throughput"}
