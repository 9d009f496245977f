"""Quantised K/V: how far off, how many bytes, and never a wide copy of everything."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_toys import CROSS, at, build, rand

import fastcache.kv_cache as kv
from fastcache.allocations import peak_bytes
from fastcache.errors import UserError
from fastcache.kv_cache.packing import pack, unpack
from fastcache.models.attention import attend, attend_pieces

TINY = {"heads": 4, "dim": 48}  # of the bundled models
BLOCKS, CHUNKS, TOKENS = 6, 7, 192


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([8, 4]),
    per=st.sampled_from(["token", "channel"]),
    tokens=st.integers(1, 200),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 3.0, -50.0]),
    seed=st.integers(0, 999),
)
def test_a_value_is_off_by_half_a_step_at_most(bits, per, tokens, size, offset, seed):
    torch.manual_seed(seed)
    x = (rand(tokens, dim=6) + offset) * size
    packed = pack(x, bits, per)
    back = unpack(packed, 0, tokens, torch.empty_like(x))
    scale = packed.scale.float()
    scale = scale.repeat_interleave(64, 1)[:, :tokens] if per == "channel" else scale
    assert ((back - x).abs() <= scale * 0.501 + x.abs().max() * 1e-6).all()
    assert (scale * (254 if bits == 8 else 15) <= 2.04 * x.abs().max() + 1e-30).all()  # no coarser than need be


def test_equal_values_and_zeros_come_back():
    for bits in (8, 4):
        for value in (0.0, 0.5, -2.0):
            x = torch.full((1, 70, 2, 4), value)
            assert torch.allclose(unpack(pack(x, bits, "token"), 0, 70, torch.empty_like(x)), x, rtol=0.005)


def test_channels_of_their_own_size_keep_small_keys():
    x = rand(64, dim=8)
    x[..., 3] *= 100  # one channel far larger, as in keys
    errors = {}
    for per in ("token", "channel"):
        back = unpack(pack(x, 4, per), 0, 64, torch.empty_like(x))
        errors[per] = float((back - x)[..., :3].abs().mean())
    assert errors["channel"] < errors["token"] / 10


@pytest.mark.parametrize(("bits", "share"), [(8, 0.55), pytest.param(4, 0.31, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
@torch.no_grad()
def test_bytes_and_their_peak_against_bfloat16(bits, share, dtype):
    """Storing a whole video and reading it, block by block: everything the engine allocates."""
    spec = kv.KVSpec(1, 4, 48, dtype, "cpu", CHUNKS * TOKENS)
    chunks = [rand(TOKENS, **TINY, dtype=dtype) for _ in range(CHUNKS + 1)]
    engine, blocks = build(BLOCKS, ("pos",), spec, kv.QuantizedKVCacheEngine, bits=bits)

    def video():
        for i, k in enumerate(chunks[:-1]):
            for block in blocks:
                read(engine.attend_pieces(block.self_attn, k, k, **at(i * TOKENS)))
                engine.append_self_kv(block.self_attn, k, k, **at(i * TOKENS))
        for block in blocks:
            read(engine.attend_pieces(block.self_attn, chunks[-1], chunks[-1], **at(CHUNKS * TOKENS)))

    bf16 = 2 * BLOCKS * CHUNKS * TOKENS * 4 * 48 * 2
    _, peak = peak_bytes(video)
    assert engine.memory_bytes() <= peak <= share * bf16
    packed = 48 * bits // 8 + (2 if bits == 8 else 4)  # a token and head: values, scale, low
    assert engine.memory_bytes() == 2 * BLOCKS * CHUNKS * TOKENS * 4 * packed


def read(pieces):
    for piece in pieces:
        del piece  # as attention does, before it asks for the next


@pytest.mark.parametrize("shape", [(1, 5, 2, 8), (2, 130, 4, 12)])
def test_attention_in_pieces_is_attention(shape):
    q = torch.randn(shape)
    pieces = [(torch.randn(shape[0], n, *shape[2:]), torch.randn(shape[0], n, *shape[2:])) for n in (64, 64, 3, 7)]
    k, v = (torch.cat([piece[i] for piece in pieces], 1) for i in (0, 1))
    assert torch.allclose(attend_pieces(q, pieces), attend(q, k, v), atol=1e-6)
    assert torch.allclose(attend_pieces(q, pieces[:1]), attend(q, *pieces[0]), atol=1e-6)


def test_the_working_chunk_is_kept_as_it_is():
    engine, blocks = build(1, ("pos",), make=kv.QuantizedKVCacheEngine, bits=4)
    k = rand(3)
    engine.put_current_kv(blocks[0].self_attn, k, k, **at(0))
    assert torch.equal(engine.get_current_kv(blocks[0].self_attn, cache_tag="pos")[0], k)
    engine.append_self_kv(blocks[0].self_attn, k, k, **at(0))
    assert not torch.equal(engine.get_self_prefix(blocks[0].self_attn, cache_tag="pos")[0], k)


@pytest.mark.parametrize("options", [{"bits": 3}, {"bits": 16}, {"bits": True}, {"bits": "8"}, {"keys": "head"}])
def test_refuses_bad_options(options):
    with pytest.raises(UserError, match="is not one of"):
        kv.QuantizedKVCacheEngine(**options)


def test_refuses_an_odd_head_for_four_bits():
    spec = kv.KVSpec(1, 2, 5, torch.float32, "cpu", None, CROSS)
    with pytest.raises(kv.KVSpecMismatchError, match="odd"):
        build(spec=spec, make=kv.QuantizedKVCacheEngine, bits=4)
    build(spec=spec, make=kv.QuantizedKVCacheEngine, bits=8)
