import pytest
import torch

from fastcache.errors import UserError
from fastcache.sampler import Euler, FewStep, FlowTable, add_noise

LEVELS = {
    5.0: [1000.0, 937.5, 833.3333129882812, 625.0],
    8.0: [1000.0, 960.0, 888.8889, 727.2728],
    3.0: [1000.0, 900.0, 750.0, 500.0],
}


def no_noise():
    raise AssertionError("this sampler must not draw noise here")


@pytest.mark.parametrize("shift", LEVELS)
def test_warped_steps_give_the_known_timesteps(shift):
    sampler = FewStep(shift=shift)
    expected = torch.tensor(LEVELS[shift])
    assert torch.allclose(sampler.timesteps, expected, atol=1e-3, rtol=0)
    assert torch.allclose(sampler.sigmas, expected / 1000, atol=1e-6, rtol=0)
    assert sampler.timesteps.dtype == sampler.sigmas.dtype == torch.float32


def test_the_table_ends_above_zero():
    table = FlowTable()
    assert len(table.sigmas) == 1000
    assert table.sigmas[0] == 1
    assert float(table.sigmas[-1]) == pytest.approx(0.004980080295, abs=1e-9)
    assert float(table.sigma(torch.tensor(0.0))) == float(table.sigmas[-1])  # t = 0 finds the last entry


def test_unwarped_steps_are_timesteps_and_look_up_the_nearest_level():
    sampler = FewStep(warp=False)
    assert sampler.timesteps.tolist() == [1000, 750, 500, 250]
    assert torch.allclose(sampler.sigmas, torch.tensor([1.0, 0.75000006, 0.50059956, 0.25159743]), atol=1e-6, rtol=0)


def test_fewer_steps():
    assert FewStep(steps=[1000, 500]).timesteps.tolist() == pytest.approx([1000, 833.3333], abs=1e-3)
    assert FewStep(steps=[1000]).num_steps == 1


@pytest.mark.parametrize("steps", [[1000], [1000, 500], [1000, 750, 500, 250], list(range(1000, 0, -50))])
@pytest.mark.parametrize("kind", [Euler, FewStep])
def test_a_linear_model_gives_its_constant_back_exactly(kind, steps):
    """With flow = noise - x0 = (x - x0) / sigma and one x0, every path ends at x0 after any number of steps."""
    x0 = torch.tensor([-1.25, 0.0, 0.5, 3.0], dtype=torch.float64)
    noise = torch.Generator().manual_seed(1)
    sampler = kind(steps=steps)
    x = eps = torch.randn(4, generator=noise, dtype=torch.float64)
    for i in range(sampler.num_steps):
        flow = (x - x0) / sampler.sigma(i)
        assert torch.allclose(sampler.x0(x, flow, i), x0, atol=1e-12, rtol=0)
        if kind is Euler:
            assert torch.allclose(flow, eps - x0, atol=1e-9, rtol=0)  # the noise the path started from
        x = sampler.next(x, flow, i, lambda: torch.randn(4, generator=noise))
    assert torch.allclose(x.double(), x0, atol=1e-6 if kind is FewStep else 1e-9, rtol=0)


def test_euler_moves_to_the_next_listed_level_not_the_next_table_entry():
    sampler = Euler()
    x, flow = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    moves = [float(sampler.next(x, flow, i, no_noise)) for i in range(4)]
    assert moves == pytest.approx([-0.0625, -0.10416669, -0.20833331, -0.625], abs=1e-7)


def test_few_step_mixes_the_drawn_noise_at_the_next_level():
    sampler = FewStep()
    x, flow, noise = torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([10.0])
    x0 = 2 - 0.9375 * 3
    assert float(sampler.next(x, flow, 1, lambda: noise)) == pytest.approx((1 - 5 / 6) * x0 + 5 / 6 * 10, abs=1e-5)
    assert float(sampler.next(x, flow, 3, no_noise)) == pytest.approx(2 - 0.625 * 3, abs=1e-6)


def test_conversions_keep_the_dtype_but_not_its_rounding():
    x, flow = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0], dtype=torch.bfloat16)
    x0 = FewStep().x0(x, flow, 1)
    assert x0.dtype == torch.bfloat16 and float(x0) == 0.0625
    assert add_noise(x, flow, 0.3).dtype == torch.bfloat16


def test_which_noise_a_step_gets():
    assert [FewStep(renoise="fresh").noise_step(i) for i in range(4)] == [0, 1, 2, 3]
    assert [FewStep(renoise="shared").noise_step(i) for i in range(4)] == [0, 0, 0, 0]


def test_config_holds_every_argument_in_plain_types():
    config = FewStep(renoise="shared", shift=3).config()
    assert config == {
        "name": "few_step", "steps": [1000, 750, 500, 250], "warp": True, "shift": 3.0,
        "frames_per_chunk": 3, "store": "clean", "renoise": "shared",
    }  # fmt: skip
    name = config.pop("name")
    assert name == "few_step" and FewStep(**config).config() == FewStep(renoise="shared", shift=3).config()


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": []}, {"steps": [250, 500]}, {"steps": [500, 500]}, {"steps": [2000, 10]}, {"steps": [1000, 0]},
        {"steps": "1000"}, {"steps": None}, {"steps": [937.5]}, {"shift": 0}, {"shift": float("nan")}, {"shift": "5"},
        {"warp": "no"}, {"frames_per_chunk": 0}, {"frames_per_chunk": 1.5}, {"store": "never"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Euler, FewStep])
def test_bad_values_are_refused_by_name(kind, bad):
    with pytest.raises(UserError, match="sampler." + next(iter(bad))):
        kind(**bad)


def test_renoise_is_checked_and_euler_has_none():
    with pytest.raises(UserError, match="fresh or shared"):
        FewStep(renoise="stale")
    with pytest.raises(TypeError):
        Euler(renoise="shared")
