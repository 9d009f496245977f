#!/usr/bin/env bash
# Question: do all launchers make the same bytes? One small sweep on each that is installed; Ray also as a cluster that runs
# already. joblib and slurm go together (pip install -e ".[joblib,slurm]"), ray needs an environment of its own (".[ray]").
# Time: one to two minutes on 2 CPU cores. Expect: one distinct sum for each video; exit status 1 where there are more.
set -euo pipefail
out=$(realpath -m "${1:-outputs/launchers}")
export RAY_USAGE_STATS_ENABLED=0
sweep() {
  echo "== $1"
  local began=$SECONDS
  python -m fastcache.run -m method=reuse schedule=FRRF,FRRR model=toy frames=3 num_videos=1 rescale=none metric=psnr \
    tracking=disabled device=cpu outputs="$out/$1" "${@:2}"
  echo "$1: $((SECONDS - began)) s"
}
has() { python -c "import hydra_plugins.$1" 2> /dev/null || { echo "== $1 is not installed"; false; }; }

sweep basic
if has hydra_joblib_launcher; then sweep joblib hydra/launcher=joblib; fi
if has hydra_submitit_launcher; then sweep submitit_local hydra/launcher=submitit_local; fi
if has hydra_ray_launcher; then
  sweep ray_local hydra/launcher=ray_local
  ray start --head --block --port=0 --num-cpus=2 --include-dashboard=false > "$out/ray.log" 2>&1 &
  head=$!
  trap 'kill $head && wait $head || true' EXIT
  until address=$(grep -oP "ray start --address='\K[^']+" "$out/ray.log"); do
    kill -0 $head 2> /dev/null || { cat "$out/ray.log"; exit 1; }
    sleep 1
  done
  sweep ray_cluster hydra/launcher=ray_cluster hydra.launcher.ray.init.address="$address"
fi
cd "$out"
sums=$(sha256sum ./*/*/videos/*.npz | sed 's|  \./[^/]*/|  |' | sort | uniq -c)
echo "$sums"
videos=$(awk '{ print $3 }' <<< "$sums" | sort -u | wc -l)
test "$(wc -l <<< "$sums")" = "$videos" || { echo "the launchers made different videos" >&2; exit 1; }
