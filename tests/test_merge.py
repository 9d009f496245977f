"""Merging fits: all samples count once, and only what belongs together is put together."""

import shutil

import pytest
import yaml

from fastcache import calibrate, fits
from fastcache.errors import UserError
from fastcache.merge import merge_fits

COMMAND = ["model=toy", "frames=6", "num_videos=2", "tracking=disabled"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two probes of the same model with other seeds, in folders of their own."""
    paths = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp("machine")
        assert calibrate.main([*COMMAND, f"seed={seed}", f"outputs={folder}"]) == 0
        paths += (folder / "fits").glob("*.yaml")
    return paths


def test_a_merged_fit_is_the_fit_of_all_samples(made, tmp_path, capsys):
    to = tmp_path / "both.yaml"
    assert calibrate.main(["merge", *map(str, made), f"to={to}"]) == 0
    assert str(to) in capsys.readouterr().out.replace("\n", "")
    fit, samples = fits.load_fit(to), fits.load_samples(to)
    parts = [fits.load_samples(path) for path in made]
    assert fit["n"] == len(samples) == sum(map(len, parts))
    assert [s["x"] for s in samples] == [s["x"] for part in parts for s in part]
    assert {s["prompt"] for s in samples} == {0, 1, 2, 3}
    again = fits.make_fit(samples, None, fit["fitted_on"])
    assert again["coefficients"] == fit["coefficients"] and again["steps"] == fit["steps"]
    on = fit["fitted_on"]
    assert (on["num_prompts"], on["seed"], [probe["seed"] for probe in on["probes"]]) == (4, None, [1, 2])
    assert to.with_suffix(".png").is_file()
    first = fits.load_fit(made[0])
    fits.check_match(fit, first["fitted_on"])


def test_the_order_does_not_matter_to_its_name(made):
    names = {merge_fits(paths)[0]["fitted_on"]["prompts"] for paths in (made, made[::-1])}
    assert len(names) == 1


def test_samples_are_not_counted_twice(made, tmp_path):
    with pytest.raises(UserError, match="in already"):
        merge_fits([made[0], made[0]])
    to = tmp_path / "both.yaml"
    assert calibrate.main(["merge", *map(str, made), f"to={to}"]) == 0
    with pytest.raises(UserError, match="in already"):
        merge_fits([to, made[1]])


def test_what_does_not_belong_together_is_refused(made, tmp_path):
    for number, change in enumerate(({"indicator": "e0"}, {"frames": 9}, {"weights": "ff"})):
        other = tmp_path / f"{number}.yaml"
        fit = yaml.safe_load(made[1].read_text())
        other.write_text(yaml.safe_dump(fit | {"fitted_on": fit["fitted_on"] | change}))
        with pytest.raises(UserError, match=f"does not go with .*{next(iter(change))}"):
            merge_fits([made[0], other])


@pytest.mark.parametrize(("words", "says"), [
    ([], "two fits or more"), (["one.yaml"], "two fits or more"), (["a.yaml", "b.yaml"], "no such file"),
    (["a.yaml", "b.yaml", "form=steps"], "no option form"),
])  # fmt: skip
def test_a_command_that_cannot_be_done_is_one_sentence(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert calibrate.main(["merge", *words]) == 1
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_missing_samples_and_a_name_that_is_taken(made, tmp_path, capsys):
    lonely = tmp_path / "lonely.yaml"
    shutil.copy(made[1], lonely)
    with pytest.raises(UserError, match="samples.json cannot be read"):
        merge_fits([made[0], lonely])
    for to in (lonely, tmp_path / "fit.json"):
        assert calibrate.main(["merge", *map(str, made), f"to={to}"]) == 1
        assert "new .yaml file" in capsys.readouterr().err
