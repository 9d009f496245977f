#!/usr/bin/env bash
# Question: do all launchers make the same bytes? One small sweep on each that is installed; Ray also as a cluster that runs
# already. joblib and slurm go together (pip install -e ".[joblib,slurm]"), ray needs an environment of its own (".[ray]").
# Time: one to two minutes on 2 CPU cores. Expect: one distinct sum for each video.
set -euo pipefail
out=$(realpath -m "${1:-outputs/launchers}")
export RAY_USAGE_STATS_ENABLED=0
sweep() {
  echo "== $1"
  python -m fastcache.run -m method=reuse schedule=FRRF,FRRR model=toy frames=3 num_videos=1 rescale=none metric=psnr \
    tracking=disabled device=cpu outputs="$out/$1" "${@:2}"
}
has() { python -c "import hydra_plugins.$1" 2> /dev/null || { echo "== $1 is not installed"; false; }; }

sweep basic
if has hydra_joblib_launcher; then sweep joblib hydra/launcher=joblib; fi
if has hydra_submitit_launcher; then sweep submitit_local hydra/launcher=submitit_local; fi
if has hydra_ray_launcher; then
  sweep ray hydra/launcher=ray
  ray start --head --block --port=6399 --node-ip-address=127.0.0.1 --num-cpus=2 --include-dashboard=false > "$out/ray.log" 2>&1 &
  trap 'kill $!' EXIT
  for _ in $(seq 120); do grep -q "Ray runtime started" "$out/ray.log" && break; sleep 1; done
  sweep ray_cluster hydra/launcher=ray_cluster hydra.launcher.ray.init.address=127.0.0.1:6399
fi
cd "$out" && sha256sum ./*/*/videos/*.npz | sed 's|  \./[^/]*/|  |' | sort | uniq -c
