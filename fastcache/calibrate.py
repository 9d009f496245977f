"""`python -m fastcache.calibrate`: roll out the calibration prompts in full with the probe, fit, save.

The fit turns the distance between two steps' indicators into the expected relative error of reuse. Torch is imported
once something has to be computed.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import open_dict

from fastcache import fits, terminal, track
from fastcache.catalog import DIALS
from fastcache.errors import UserError
from fastcache.fits import PROBE_SEED, Fit
from fastcache.settings import Settings, wanted_fit

HELP = """\
Fit how much reuse costs, for one model, sampler and indicator.

  python -m fastcache.calibrate
  python -m fastcache.calibrate sampler=few_step sampler.renoise=shared
  python -m fastcache.calibrate indicator=e0 rescale.degree=1 num_videos=8
  python -m fastcache.calibrate merge FIT FIT ... [to=FILE]

Takes the options of fastcache.run that say what to generate; prompts=calibration and seed=4242 unless given. The fit
is written to OUTPUTS/fits with its samples and a picture; use it with rescale=FILE. rescale.degree=1 to 4 sets the
degree of the polynomial (default: by cross-validation); rescale.gate=false takes it whatever it is worth. merge makes
one fit from the samples of several, probed on other prompts or with other seeds, on as many machines. A fit is a W&B
run of job type probe: tracking=offline (default), online or disabled.
"""

IDLE = {"method", "schedule", *DIALS, "engine", "metric", "reference", "experiment", "retry"}
IDLE |= {"image", "control", "guidance_scale", "negative_prompt", "guidance_decisions"}

OnVideo = Callable[[int, int], None]
"""Called after each video with (videos done, videos in all)."""


def probe(
    model: Any,
    sampler: Any,
    prompts: Sequence[str],
    frames: int,
    seed: int = PROBE_SEED,
    indicator: str = "modulated_input",
    on_video: OnVideo | None = None,
) -> list[dict[str, Any]]:
    """Samples of every prompt, computed in full: those of methods.calibrate.Probe, each with prompt (its index).

    Raises UserError on an empty list of prompts and on what the model cannot roll out.
    """
    from fastcache.methods.calibrate import Probe
    from fastcache.noise import Noise
    from fastcache.sample import rollout

    if not prompts:
        raise UserError("the probe has no prompts; expected at least one, e.g. prompts=calibration")
    method, noise = Probe(indicator=indicator), Noise(seed)
    forced = (True,) * sampler.num_steps
    samples: list[dict[str, Any]] = []
    for idx, prompt in enumerate(prompts):
        condition = model.condition(prompt, seed + idx, frames)
        rollout(model, {"pos": method}, sampler, forced, condition, frames, noise.of(idx))
        samples += [sample | {"prompt": idx} for sample in method.samples]
        if on_video is not None:
            on_video(idx + 1, len(prompts))
    return samples


def calibrate(
    model: Any,
    sampler: Any,
    prompts: Sequence[str],
    wanted: dict[str, Any],
    asked: fits.Asked | None = None,
    on_video: OnVideo | None = None,
) -> tuple[Fit, list[dict[str, Any]]]:
    """Probe and fit what ``wanted`` (see fits.fitted_on) describes: the fit and its samples.

    ``asked``: degree and gate of the fit (see fits.make_fit).
    """
    frames, seed, indicator = wanted["frames"], wanted["seed"], wanted["indicator"]
    samples = probe(model, sampler, prompts, frames, seed, indicator, on_video)
    return fits.make_fit(samples, fitted_on=wanted, **(asked or fits.asked_of({}))), samples


def keep(fit: Fit, samples: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a fit to ``path``, its samples and a picture of both beside it."""
    from fastcache.media.fit_plot import draw_fit

    draw_fit(fit, samples, path.with_suffix(".png"))
    fits.save_fit(fit, samples, path)


def make_fit(
    s: Settings, model: Any, sampler: Any, prompts: Sequence[str], wanted: Fit, asked: fits.Asked, path: Path
) -> None:
    """Calibrate and keep, with a progress bar and, as ``s`` has it, a W&B run of its own named after the fit."""
    about = track.job(s, path.stem, path.stem.rpartition("-")[2], path.parent, "probe")
    with track.tracked({"fitted_on": wanted, "asked": asked}, **about) as tracker:
        with terminal.Bar(len(prompts), 1, title="probe ") as bar:
            fit, samples = calibrate(model, sampler, prompts, wanted, asked, lambda done, _: bar.count(done))
        keep(fit, samples, path)
        tracker.log_fit(fit, samples, path.with_suffix(".png"))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0 done, 1 refused."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(HELP)
        return 0
    try:
        if argv[:1] == ["merge"]:
            merge(argv[1:])
        else:
            run(*settings(argv))
    except UserError as error:
        terminal.error(error)
        return 1
    except KeyboardInterrupt:
        terminal.error("interrupted; nothing was written")
        return 130
    return 0


def settings(argv: Sequence[str]) -> tuple[Settings, fits.Asked]:
    """What to calibrate on, and the form of the fit. Raises UserError on an option that plays no part in it."""
    from fastcache.config import plan
    from fastcache.preflight import place
    from fastcache.settings import resolve

    keys = {word.partition("=")[0] for word in argv}
    if idle := keys & IDLE:
        raise UserError(
            f"calibration computes every step in full, without guidance; it has no use for {', '.join(sorted(idle))}"
        )
    ours = ["method=calibrate"]
    ours += [] if keys & {"prompts", "prompt"} else ["prompts=calibration"]
    ours += [] if "seed" in keys else [f"seed={PROBE_SEED}"]
    command = plan([*ours, *argv])
    if command.jobs is None or command.sweep:
        raise UserError("calibration makes one fit at a time: give single values and leave -m, --cfg and --info out")
    cfg, choices = command.jobs[0]
    if choices["rescale"] != "auto":
        raise UserError("calibration makes a fit; leave rescale= out, the degree is set with rescale.degree=2")
    with open_dict(cfg):
        cfg.schedule = "F" * len(cfg.sampler.steps)
    asked = fits.asked_of(cfg.rescale)
    return place(resolve(cfg, choices)), asked


def run(s: Settings, asked: fits.Asked) -> Path:
    """Probe, fit and save, unless that very fit is there already; say what it is worth. Returns its file."""
    auto = wanted_fit(s)
    given = {key: auto[key] for key in ("model", "weights", "sampler", "indicator", "frames")}
    wanted = fits.fitted_on(**given, seed=s["seed"], prompts=s["prompts"])
    path = fits.fit_path(Path(s["outputs"]).expanduser().absolute() / "fits", wanted, asked)
    if s["dry"]:
        state = "exists" if path.is_file() else "does not exist yet"
        terminal.say(f"{len(s['prompts'])} videos of {s['frames']} latent frames; {path} {state}")
        return path
    if s["force"] or not path.is_file():
        _make(s, asked, wanted, path)
    fit = fits.load_fit(path)
    terminal.say(fits.describe(fit))
    terminal.say(f"wrote {path}  use it with rescale={path}")
    return path


def merge(words: Sequence[str]) -> Path:
    """`merge FIT FIT ... [to=FILE]`: one fit from the samples of several. Raises UserError where they do not belong
    together."""
    from fastcache.merge import merge_fits

    sources = [Path(word).expanduser() for word in words if "=" not in word]
    options = [word.partition("=")[::2] for word in words if "=" in word]
    if unknown := [key for key, _ in options if key != "to"]:
        raise UserError(f"merge has no option {unknown[0]}; write merge FIT FIT ... [to=FILE]")
    fit, samples = merge_fits(sources)
    path = fits.fit_path(sources[0].parent, fit["fitted_on"], fit["asked"])
    if options:
        path = Path(options[-1][1]).expanduser()
        if path.suffix != ".yaml" or path.exists():
            raise UserError(f"to={path}: expected the name of a new .yaml file")
    keep(fit, samples, path)
    terminal.say(fits.describe(fit))
    terminal.say(f"wrote {path}  use it with rescale={path}")
    return path


def _make(s: Settings, asked: fits.Asked, wanted: dict[str, Any], path: Path) -> None:
    from fastcache.build import build
    from fastcache.make import get_model
    from fastcache.preflight import check_loadable, check_tracking
    from fastcache.results import check_writable

    check_tracking([s])
    build(s["method"])  # refuses an unknown indicator
    check_loadable(s)
    model, sampler = get_model(s), build(s["sampler"])
    for idx, prompt in enumerate(s["prompts"]):
        model.condition(prompt, s["seed"] + idx, s["frames"])
    check_writable(s["outputs"])
    make_fit(s, model, sampler, s["prompts"], wanted, asked, path)


if __name__ == "__main__":
    sys.exit(main())
