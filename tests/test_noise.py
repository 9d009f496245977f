import itertools

import pytest
import torch

from fastcache.noise import Noise

SHAPE = (1, 3, 4, 8, 8)


def test_order_and_repetition_do_not_matter():
    addresses = list(itertools.product(range(2), range(3), range(2)))
    forwards, backwards = Noise(0), Noise(0)
    first = {a: forwards.draw(*a, SHAPE) for a in addresses}
    for address in reversed(addresses):
        assert torch.equal(backwards.draw(*address, SHAPE), first[address])
        assert torch.equal(forwards.draw(*address, SHAPE), first[address])


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = Noise(3).draw(0, 0, 0, SHAPE)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(Noise(3).draw(0, 0, 0, SHAPE), a)


def test_every_part_of_the_address_counts():
    # (1, 11) and (11, 1) would meet if an address were written without separators.
    addresses = [(s, v, c, k) for s in (0, 1, 11) for v in (0, 1, 11) for c in (0, 1, 11) for k in (0, 1)]
    draws = torch.stack([Noise(s).draw(v, c, k, SHAPE).flatten() for s, v, c, k in addresses])
    correlation = torch.corrcoef(draws) - torch.eye(len(draws))
    assert correlation.abs().max() < 0.2


def test_standard_normal_fp32():
    x = Noise(0).draw(0, 0, 0, (100_000,))
    assert x.dtype == torch.float32 and x.device.type == "cpu"
    assert abs(float(x.mean())) < 0.02 and abs(float(x.std()) - 1) < 0.02


def test_a_value_that_must_never_change():
    assert Noise(7).draw(1, 2, 3, (16,))[:3].tolist() == pytest.approx([-0.966279, 0.697937, -0.544704], abs=1e-5)


def test_a_batch_is_its_videos_side_by_side():
    draw = Noise(5).of(4, 9)
    batch = draw(1, 2, (2, *SHAPE[1:]))
    assert torch.equal(batch[:1], Noise(5).draw(4, 1, 2, SHAPE))
    assert torch.equal(batch[1:], Noise(5).draw(9, 1, 2, SHAPE))
