"""The functions that a script is made of, as Python text: each makes its inputs and returns what is timed.

A script gets only those that its cases call, so that it stays short enough to read and to edit. They use nothing but
torch, and the engine's own operators where a kernel is the engine's own.
"""

from __future__ import annotations

LINEAR = '''
def linear(tokens, k, n, bias=False):
    """A linear layer as engines store it: weights (n, k), row-major."""
    x, weight = tensor(tokens, k), tensor(n, k)
    added = tensor(n) if bias else None
    return lambda: torch.nn.functional.linear(x, weight, added)
'''

SDPA = '''
def sdpa(sequences, queries, length, heads, kv_heads, head_dim):
    """torch's own attention on keys and values that lie together."""
    q = tensor(sequences, heads, queries, head_dim)
    k, v = tensor(sequences, kv_heads, length, head_dim), tensor(sequences, kv_heads, length, head_dim)
    grouped, causal = heads != kv_heads, queries > 1
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
'''

PAGED_ATTENTION = '''
def paged_attention(sequences, queries, length, heads, kv_heads, head_dim, block, splits, window=None):
    """vLLM's flash attention on its paged KV cache; blocks in random order, as after some hours."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    version, per_sequence = get_flash_attn_version(), -(-length // block)
    blocks = sequences * per_sequence
    q, out = tensor(sequences * queries, heads, head_dim), tensor(sequences * queries, heads, head_dim)
    k, v = tensor(blocks, block, kv_heads, head_dim), tensor(blocks, block, kv_heads, head_dim)
    table = torch.randperm(blocks, device=DEVICE, dtype=torch.int32).view(sequences, per_sequence)
    starts = torch.arange(0, sequences * queries + 1, queries, device=DEVICE, dtype=torch.int32)
    lengths = torch.full((sequences,), length, device=DEVICE, dtype=torch.int32)
    behind = (-1, -1) if window is None else (window - 1, 0)
    planned = None
    if version == 3:
        planned = get_scheduler_metadata(
            batch_size=sequences, max_seqlen_q=queries, max_seqlen_k=length, num_heads_q=heads, num_heads_kv=kv_heads,
            headdim=head_dim, cache_seqlens=lengths, qkv_dtype=DTYPE, cu_seqlens_q=starts, page_size=block,
            causal=True, window_size=behind, num_splits=splits,
        )
    return lambda: flash_attn_varlen_func(
        q=q, k=k, v=v, out=out, cu_seqlens_q=starts, max_seqlen_q=queries, seqused_k=lengths, max_seqlen_k=length,
        softmax_scale=head_dim**-0.5, causal=True, window_size=list(behind), block_table=table,
        scheduler_metadata=planned, fa_version=version, num_splits=splits,
    )
'''

KV_WRITE = '''
def kv_write(tokens, kv_heads, head_dim, block):
    """vLLM's write of new keys and values into its paged cache."""
    import vllm._custom_ops as ops

    key, value = tensor(tokens, kv_heads, head_dim), tensor(tokens, kv_heads, head_dim)
    cache = tensor(2, tokens // block + 1, block, kv_heads, head_dim)
    slots, one = torch.arange(tokens, device=DEVICE), torch.ones(1, device=DEVICE)
    return lambda: ops.reshape_and_cache_flash(key, value, cache[0], cache[1], slots, "auto", one, one)
'''

RMS_NORM = '''
def rms_norm(tokens, hidden, fused):
    """vLLM's RMS norm, alone or with the addition of the residual in front of it."""
    import vllm._custom_ops as ops

    x, other, weight = tensor(tokens, hidden), tensor(tokens, hidden), tensor(hidden)
    if fused:
        return lambda: ops.fused_add_rms_norm(x, other, weight, 1e-6)
    return lambda: ops.rms_norm(other, x, weight, 1e-6)
'''

SILU_AND_MUL = '''
def silu_and_mul(tokens, inner):
    """vLLM's activation: the first half through SiLU, times the second half."""
    import vllm._custom_ops  # noqa: F401 - registers torch.ops._C

    x, out = tensor(tokens, 2 * inner), tensor(tokens, inner)
    return lambda: torch.ops._C.silu_and_mul(out, x)
'''

ROTARY = '''
def rotary(tokens, heads, kv_heads, head_dim):
    """vLLM's rotary embedding of queries and keys, in place."""
    import vllm._custom_ops as ops

    query, key = tensor(tokens, heads * head_dim), tensor(tokens, kv_heads * head_dim)
    positions, table = torch.arange(tokens, device=DEVICE), tensor(max(4096, tokens), head_dim)
    return lambda: ops.rotary_embedding(positions, query, key, head_dim, table, True)
'''

SAMPLING = '''
def sampling(op, rows, vocab):
    """One operation of sampling on logits in 32 bits."""
    logits = tensor(rows, vocab, dtype=torch.float32)
    return {
        "softmax": lambda: torch.softmax(logits, dim=-1),
        "topk": lambda: torch.topk(logits, min(50, vocab), dim=-1),
        "argmax": lambda: torch.argmax(logits, dim=-1),
        "sort": lambda: torch.sort(logits, dim=-1, descending=True),
    }[op]
'''

OPERATOR = '''
def operator(name, *inputs):
    """An ATen operator with every input of its schema, as recorded (None: not recorded); by the overload that fits."""
    packet, failure = getattr(torch.ops.aten, name), None
    for overload in (getattr(packet, each) for each in packet.overloads()):
        expected = overload._schema.arguments
        if len(expected) != len(inputs):
            continue
        given = [(one.default_value if value is None else value, one) for value, one in zip(inputs, expected)]
        plain = [value for value, one in given if not one.kwarg_only]
        named = {one.name: value for value, one in given if one.kwarg_only}
        try:
            overload(*plain, **named)
        except RuntimeError as mismatch:
            failure = mismatch
        else:
            return lambda: overload(*plain, **named)
    raise failure or RuntimeError(f"no overload of aten::{name} takes {len(inputs)} inputs")
'''

INDUCTOR = '''
def inductor(path, name, sizes):
    """A kernel that torch.compile wrote, loaded from its cached source; `sizes` are its whole numbers by name.

    How large its buffers are is not known: they are made too large, and indices in them are 0, so none leads astray.
    """
    import importlib.util
    import math

    spec = importlib.util.spec_from_file_location("cached", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = getattr(module, name)
    room = max(8 * math.prod(size for key, size in sizes.items() if key.endswith("numel")), 1 << 24)
    inputs = []
    for argument, kind in kernel.triton_meta["signature"].items():
        if kind.startswith("*"):
            dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "i64": torch.int64,
                     "i32": torch.int32, "i1": torch.bool, "u8": torch.uint8, "fp64": torch.float64}[kind[1:]]
            inputs.append(tensor(room, dtype=dtype))
        elif kind != "constexpr":
            inputs.append(sizes[argument])
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: kernel.run(*inputs, stream=stream)
'''

BY_NAME = {
    "linear": LINEAR,
    "sdpa": SDPA,
    "paged_attention": PAGED_ATTENTION,
    "kv_write": KV_WRITE,
    "rms_norm": RMS_NORM,
    "silu_and_mul": SILU_AND_MUL,
    "rotary": ROTARY,
    "sampling": SAMPLING,
    "operator": OPERATOR,
    "inductor": INDUCTOR,
}
