"""scores.json and trace.json of a run, from its videos on disk and its reference's. No torch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from fastcache.catalog import DIALS
from fastcache.errors import UserError
from fastcache.metrics.score import NAMES, NOT_ASKED, PER_CHUNK, summarise
from fastcache.results import Folder, differing
from fastcache.schedule import parse_schedule
from fastcache.settings import Settings, guided, label, number

Scores = dict[str, Any]
TIMING = (
    "wall clock after a warm-up chunk in each process, medians over videos; dit_s_per_video: the DiT and the cache "
    "method, denoising and store passes; s_per_video: from prompt to frames on disk, without mp4 and scoring, which a "
    "sweep leaves to a second process where a core is free"
)
UNSTEADY = 1.5
"""How much slower than its like a video may be before a speed-up is in doubt."""
LEEWAY = 1.05
"""How far above its bound a speed-up may be on a steady machine."""
PEAK = "peak_bytes: CUDA memory of the process on a GPU, its resident memory on a CPU"


class Scored(NamedTuple):
    """What the metrics say of one video: an entry for each run it was compared with, and the rules they follow."""

    entries: list[dict[str, Any]]
    rules: dict[str, Any]


def up_to_date(former: Scores | None, reference: Folder, wanted: Mapping[str, Any], twin: Folder | None = None) -> bool:
    """Whether scores.json holds every metric asked for, against this reference and the engine's own (``twin``)."""
    if former is None or former["reference"] != reference.signature:
        return False
    if twin is not None and (former.get("engine_reference") or {}).get("reference") != twin.signature:
        return False
    had = former["protocol"]["metrics"]
    return all(had.get(name) == node for name, node in wanted.items())


def measure(
    s: Settings,
    folder: Folder,
    reference: Folder,
    scored: Sequence[Scored],
    former: Scores | None = None,
    twin: Folder | None = None,
) -> Scores:
    """The scores of a run from those of its videos. Numbers of ``former`` that were not asked for again are kept.
    ``twin`` is the FFFF run on the same engine, which isolates the method where the engine is not exact; where there is
    one, the videos were compared with the reference and then with it."""
    infos = [folder.info(i) for i in range(folder.count)]
    base = [reference.info(i) for i in range(folder.count)]
    keys = ("prompt", "seed", "compute_fraction")
    entries = [{key: info[key] for key in keys} | one.entries[0] for info, one in zip(infos, scored, strict=True)]
    if former is not None and former["reference"] == reference.signature:
        for entry, old in zip(entries, former["per_video"], strict=True):
            _keep(entry, old)
            for name in PER_CHUNK:
                if entry[name] is not None and all(value is None for value in entry["per_chunk"][name]):
                    entry["per_chunk"][name] = old["per_chunk"][name]
    rules = scored[-1].rules | {"timing": TIMING, "memory": PEAK, "made_by": _made_by(infos)}
    rules["timing_doubt"] = {"run": unsteady(infos), "reference": unsteady(base)}
    rules["metrics"] = dict(s["metric"])
    if fit := s["rescale"]["used"]:
        kept = ("name", "coefficients", "degree", "domain", "steps", "r2", "loo", "n", "gate")
        rules["rescale"] = {key: fit.get(key) for key in kept}
    if former is not None and former["reference"] == reference.signature:
        rules = former["protocol"] | rules | {"metrics": former["protocol"]["metrics"] | rules["metrics"]}
    return (
        _identity(s, folder, reference)
        | summarise(entries)
        | _costs(s, infos, reference.settings(), base)
        | {
            "engine_reference": None if twin is None else _against_engine(infos, twin, scored, former),
            "per_video": entries,
            "protocol": rules | {"dtype": s["dtype"], "device": s["device"]},
        }
    )


def _against_engine(
    infos: Sequence[Mapping[str, Any]], twin: Folder, scored: Sequence[Scored], former: Scores | None
) -> Scores:
    """Quality and DiT speed-up against the FFFF run on the same engine."""
    made = summarise([one.entries[1] for one in scored])
    old = (former or {}).get("engine_reference") or {}
    if old.get("reference") == twin.signature:
        _keep(made, old)
    speedup = median(twin.info(i)["dit_s"] for i in range(len(infos))) / median(info["dit_s"] for info in infos)
    return {"reference": twin.signature, **made, "speedup": speedup}


def unsteady(infos: Sequence[Mapping[str, Any]]) -> str | None:
    """What makes the times of these videos doubtful, or None: those of equal work took unequal time. A machine that is
    busy all the while goes unnoticed."""
    alike: dict[float, list[float]] = {}
    for info in infos:
        alike.setdefault(round(info["forward_fraction"], 3), []).append(info["dit_s"])
    worst = max(max(times) / min(times) for times in alike.values())
    return f"DiT times of equal work differ {worst:.1f}x" if worst > UNSTEADY else None


def too_fast(row: Mapping[str, Any]) -> str | None:
    """Why the speed-up of a run cannot be true, or None: beyond LEEWAY it is more than its saved forwards would give if
    they cost nothing at all. On an engine of its own, that against the same engine's FFFF run is looked at."""
    speedup, most = (row.get("engine_reference") or row).get("speedup"), 1 / row["forward_fraction"]
    if speedup is None or speedup <= LEEWAY * most:
        return None
    return f"{speedup:.2f}x, where its forwards allow {most:.2f}x at most"


def timing_doubts(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """A sentence on the speed-ups in a table that the machine's other work may have spoilt, or None."""
    doubts: dict[str, str] = {}
    for row in rows:
        told = row["protocol"].get("timing_doubt") or {}
        whose = {"reference": "the reference"} | ({} if row["signature"] == row["reference"] else {"run": row["label"]})
        doubts |= {who: told[key] for key, who in whose.items() if told.get(key)}
        if row["label"] not in doubts and (fast := too_fast(row)):
            doubts[row["label"]] = fast
    if not doubts:
        return None
    named = [f"{who}: {what}" for who, what in list(doubts.items())[:3]]
    more = [f"{len(doubts) - 3} more runs"] if len(doubts) > 3 else []
    return f"note: timed beside other work, these speed-ups are in doubt ({'; '.join([*named, *more])})"


def trace(folder: Folder) -> dict[str, Any]:
    """trace.json: what every step of every chunk did."""
    keys = ("letters", "fractions", "indicator")
    videos = [folder.info(i)["chunks"] for i in range(folder.count)]
    return {"videos": [{"chunks": [{key: chunk[key] for key in keys} for chunk in chunks]} for chunks in videos]}


def top_speed(s: Settings, whole: float | None = None) -> float:
    """Highest of ``speeds``. Chunks that the method leaves alone (``method.chunks``) are computed in full."""
    top, chunks = speeds(s, whole), s["frames"] // s["sampler"]["frames_per_chunk"]
    if (ends := s["method"].get("chunks")) is None:
        return top[-1]
    inside = max(0, min(ends[1] + 1, chunks) - ends[0])
    return chunks / (inside / top[-1] + (chunks - inside) / top[0])


def speeds(s: Settings, whole: float | None = None) -> list[float]:
    """The DiT speed-ups that a run can reach, by the number of steps of a chunk that are skipped, from those that the
    schedule leaves out to all that it leaves open. They are over a reference of ``whole`` forwards a chunk; if not
    given, over the FFFF run that the settings ask for."""
    forced, own = parse_schedule(s["schedule"], len(s["sampler"]["steps"])), s["sampler"].get("store") != "reuse_last"
    if whole is None:
        whole = _passes(s) * (len(forced) + (own or s["reference"] == "clean"))
    least, full = forced.count(None), len(forced) + own
    return [whole / _passes(s) / (full - skipped) for skipped in range(least, least + forced.count(False) + 1)]


def idle_dial(s: Settings, made: Mapping[str, Any], traced: Mapping[str, Any] | None) -> str | None:
    """Says so where the dial of a finished run, with its scores.json and trace.json, decided nothing; else None."""
    dial = next((key for key in DIALS if key in s["method"]), None)
    if dial in (None, "skip"):  # skip orders a number of steps and compares nothing
        return None
    forced = parse_schedule(s["schedule"], len(s["sampler"]["steps"]))
    setting, share = f"{label(s)}: {dial}={number(s['dial'])}", made["compute_fraction"]
    if all(forced):
        return f"{setting} had nothing to decide, schedule={s['schedule']} forces every step"
    if share >= 1 - 1e-9:
        what = "every step was computed in full, as in the reference"
    elif share <= forced.count(True) / len(forced) + 1e-9:
        what = "every step but the F ones was skipped"
    else:
        return None
    values = list(_numbers([chunk["indicator"] for v in (traced or {}).get("videos", []) for chunk in v["chunks"]]))
    seen = f"; it was compared with values from {min(values):.3g} to {max(values):.3g}" if values else ""
    return f"{setting} changed no decision: {what}{seen}"


def _numbers(value: Any) -> Iterator[float]:
    """The numbers in nested lists."""
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif value is not None:
        yield value


def check_size(s: Settings, shape: Sequence[int], reference: Folder) -> None:
    """Raise UserError, naming the settings that differ, unless videos of ``shape`` fit their reference."""
    theirs = reference.frames(0).shape
    if tuple(shape) != tuple(theirs):
        keys = "; ".join(differing(s, reference.settings())) or "no setting"
        raise UserError(
            f"the reference {reference.path.name} has videos of {list(theirs)}, this run makes {list(shape)} [frames, "
            f"height, width, 3]. They differ in {keys}. Use reference=auto"
        )


def _identity(s: Settings, folder: Folder, reference: Folder) -> Scores:
    choices = s["choices"]
    return {
        "signature": folder.signature,
        "label": label(s),
        **{key: choices[key] for key in ("model", "engine", "method")},
        "dial": s["dial"],
        "schedule": s["schedule"],
        "guidance_scale": s["guidance_scale"],
        "guidance_decisions": s["guidance_decisions"] if guided(s) and "rescale" in s["method"] else None,
        "sampler": choices["sampler"],
        "renoise": s["sampler"].get("renoise"),
        "rescale": s["rescale"]["name"] if "rescale" in s["method"] else None,
        "seed": s["seed"],
        "num_videos": folder.count,
        "reference": reference.signature,
    }


def _forwards(s: Settings, chunks: Iterable[Mapping[str, Any]]) -> int:
    """DiT forwards of chunks, skipped steps and those of other roles than denoising included."""
    return _passes(s) * sum(len(chunk["fractions"]) + chunk["full_forwards"] for chunk in chunks)


def _passes(s: Settings) -> int:
    """Forwards that a step takes: two under guidance."""
    return 2 if guided(s) else 1


def _costs(
    s: Settings, infos: Sequence[Mapping[str, Any]], other: Settings, base: Sequence[Mapping[str, Any]]
) -> Scores:
    """What a run costs. Forward fraction and ceiling are, like the speed-up, relative to the reference, which may have
    more forwards (store passes that the run leaves out) or fewer (no guidance)."""
    mid = {key: median(info[key] for info in infos) for key in ("dit_s", "wall_s", "decode_s")}
    ref = {key: median(info[key] for info in base) for key in ("dit_s", "wall_s")}
    rest = [1 - (info["dit_s"] + info["decode_s"]) / info["wall_s"] for info in infos]
    pairs = zip(infos, base, strict=True)
    scale = [_forwards(s, info["chunks"]) / _forwards(other, b["chunks"]) for info, b in pairs]
    return {
        "compute_fraction": fmean(info["compute_fraction"] for info in infos),
        "forward_fraction": fmean(info["forward_fraction"] * part for info, part in zip(infos, scale, strict=True)),
        "ceiling": top_speed(s, _forwards(other, base[0]["chunks"][-1:])),
        "speedup": ref["dit_s"] / mid["dit_s"],
        "speedup_e2e": ref["wall_s"] / mid["wall_s"],
        "dit_s_per_video": mid["dit_s"],
        "s_per_video": mid["wall_s"],
        "overhead_fraction": median(rest),
        "flops_fraction": fmean(info["flops_fraction"] for info in infos),
        **{key: max(info[key] for info in infos) for key in ("kv_bytes", "method_bytes", "peak_bytes")},
        "kv_host_bytes": max(info.get("kv_host_bytes", 0) for info in infos),
        "nonfinite_events": sum(info["nonfinite_events"] for info in infos),
        "clamps": sum(info["clamps"] for info in infos),
    }


def _keep(entry: Scores, old: Mapping[str, Any]) -> None:
    """Take over the numbers that were scored before and not this time."""
    for name in NAMES:
        why = f"{name}_why"
        if entry.get(why) == NOT_ASKED and old.get(why) != NOT_ASKED:
            del entry[why]
            entry |= {key: old[key] for key in (name, why) if key in old}


def _made_by(infos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The distinct machines and versions that the videos come from."""
    found: list[dict[str, Any]] = []
    for info in infos:
        if info["made_by"] not in found:
            found.append(info["made_by"])
    return found
