"""Chunk plans, and masks that make one forward over all frames equal to chunk-by-chunk attention."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention

from fastcache.errors import UserError
from fastcache.kv_cache import (
    chunk_ends,
    chunk_plan,
    dense_block_mask,
    flex_block_mask,
    pad_len,
    teacher_forcing_mask,
)


@pytest.mark.parametrize(
    "frames, size, policy, plan",
    [
        (21, 3, "exact", (3,) * 7),
        (3, 3, "exact", (3,)),
        (23, 3, "front_remainder", (5, 3, 3, 3, 3, 3, 3)),
        (21, 3, "front_remainder", (3,) * 7),
        (2, 3, "front_remainder", (2,)),
        (4, 3, "front_remainder", (4,)),
        (22, 3, "first_frame", (1,) + (3,) * 7),
        (1, 3, "first_frame", (1,)),
        (4, 1, "exact", (1, 1, 1, 1)),
    ],
)
def test_chunk_plans(frames, size, policy, plan):
    assert chunk_plan(frames, size, policy) == plan


@pytest.mark.parametrize(
    "frames, size, policy, words",
    [
        (22, 3, "exact", "take 21 or 24"),
        (2, 3, "exact", "take 3"),
        (21, 3, "first_frame", "take 19 or 22"),
        (0, 3, "exact", "at least 1"),
        (3, 0, "exact", "at least 1"),
        (3, 3, "back_remainder", "front_remainder"),
    ],
)
def test_refuses_plans_that_do_not_fit(frames, size, policy, words):
    with pytest.raises(UserError, match=words):
        chunk_plan(frames, size, policy)


@given(st.integers(1, 60), st.integers(1, 7))
def test_a_front_remainder_plan_covers_every_frame_once(frames, size):
    plan = chunk_plan(frames, size, "front_remainder")
    assert sum(plan) == frames and all(n == size for n in plan[1:])
    assert plan[0] == frames if frames < size else size <= plan[0] < 2 * size


def test_chunk_ends_and_the_pair_count_of_a_whole_video():
    assert chunk_ends((1, 2), 2).tolist() == [2, 2, 6, 6, 6, 6]
    assert int(chunk_ends(chunk_plan(21, 3), 1560).sum()) == 613_267_200
    assert 613_267_200 * 7 == 4 * 32_760**2


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_four_sevenths_of_all_pairs_are_visible(tokens):
    mask = dense_block_mask(chunk_plan(21, 3), tokens)
    assert int(mask.sum()) * 7 == 4 * mask.numel()


@pytest.mark.parametrize("length, padded", [(32_760, 32_768), (65_520, 65_536), (128, 128), (1, 128), (129, 256)])
def test_padding_to_a_multiple_of_128(length, padded):
    assert pad_len(length) == padded


def test_block_causal_rule_pair_by_pair():
    plan, tokens = (1, 3, 2), 2
    mask, chunk = dense_block_mask(plan, tokens), [0] * 2 + [1] * 6 + [2] * 4
    for q in range(12):
        assert mask[q].tolist() == [chunk[k] <= chunk[q] for k in range(12)]


@pytest.mark.parametrize(
    "window, visible",
    [(6, [(0, 2), (0, 5), (3, 8), (6, 11), (9, 14)]), (7, [(0, 2), (0, 5), (2, 8), (5, 11), (8, 14)])],
)
def test_window_counts_frames_up_to_the_end_of_the_chunk(window, visible):
    mask = dense_block_mask((3,) * 5, 1, window_frames=window)
    for q, row in enumerate(mask):
        low, high = visible[q // 3]
        assert row.nonzero().flatten().tolist() == list(range(low, high + 1))


def test_a_window_smaller_than_the_chunk_still_sees_itself():
    assert dense_block_mask((3,), 1, window_frames=1).tolist() == [[1, 0, 1], [0, 1, 1], [0, 0, 1]]


def test_teacher_forcing_rule_pair_by_pair():
    plan, frames = (2, 1, 2), 5
    mask, chunk = teacher_forcing_mask(plan, 1), [0, 0, 1, 2, 2]
    assert mask.shape == (10, 10)
    for q in range(frames):
        for k in range(frames):
            assert mask[q, k] == (chunk[k] <= chunk[q])  # clean sees clean
            assert not mask[q, frames + k]  # clean never sees noisy
            assert mask[frames + q, k] == (chunk[k] < chunk[q])  # noisy sees the clean past
            assert mask[frames + q, frames + k] == (chunk[k] == chunk[q])  # and its own chunk


def test_masks_are_cached_by_what_defines_them():
    plan = chunk_plan(6, 3)
    assert dense_block_mask(plan, 2) is dense_block_mask(list(plan), 2, device=torch.device("cpu"))
    others = [dense_block_mask(plan, 3), dense_block_mask((2, 4), 2), dense_block_mask(plan, 2, window_frames=3)]
    assert others[0].shape == (18, 18) and others[1].shape == others[2].shape == (12, 12)
    assert not torch.equal(others[1], others[2]) and not torch.equal(dense_block_mask(plan, 2), others[2])
    assert dense_block_mask(plan, 2, device="meta").device.type == "meta"
    assert flex_block_mask(plan, 2) is flex_block_mask(plan, 2)


@pytest.mark.parametrize("plan, tokens", [((2, 2, 3), 16), ((1, 3, 4), 16)])  # 112 tokens, and 128: nothing to pad
@pytest.mark.parametrize("options", [{}, {"window_frames": 4}, {"teacher_forcing": True}])
def test_flex_mask_equals_the_dense_one_and_isolates_padding(plan, tokens, options):
    if "teacher_forcing" in options:
        dense = teacher_forcing_mask(plan, tokens)
    else:
        dense = dense_block_mask(plan, tokens, **options)
    length, padded = len(dense), pad_len(len(dense))
    block_mask = flex_block_mask(plan, tokens, **options)
    assert block_mask.shape[-2:] == (padded, padded)
    full = create_mask(block_mask.mask_mod, None, None, padded, padded, device="cpu")[0, 0]
    expected = torch.eye(padded, dtype=torch.bool)
    expected[:length, :length] = dense
    assert torch.equal(full, expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("plan, tokens", [((2, 2, 3), 16), ((1, 3, 4), 16)])
def test_unpadding_keeps_every_row_whether_or_not_anything_was_padded(plan, tokens):
    length = sum(plan) * tokens
    q, k, v = torch.randn(3, 1, 2, length, 16)
    room = (0, 0, 0, pad_len(length) - length)
    out = flex_attention(pad(q, room), pad(k, room), pad(v, room), block_mask=flex_block_mask(plan, tokens))
    expected = scaled_dot_product_attention(q, k, v, attn_mask=dense_block_mask(plan, tokens))
    torch.testing.assert_close(out[:, :, :length], expected)


def test_refuses_windows_it_would_ignore():
    with pytest.raises(UserError, match="teacher forcing"):
        flex_block_mask((3, 3), 1, window_frames=3, teacher_forcing=True)
    for build in (dense_block_mask, flex_block_mask):
        with pytest.raises(UserError, match="window_frames 0"):
            build((3, 3), 1, window_frames=0)
