#!/usr/bin/env bash
# Full-scale experiments on a machine with torch, numpy and Pillow and nothing else, under a time limit, resumable.
#
#   scripts/gpu_reproduce.sh OUT SECONDS [NAME ...]       default: table-noniid
#
# Before: python scripts/pack_cifar.py cifar10 data   (about 55 MiB; data/ travels with the tree, or OUT/../data)
# What is measured so far lies under OUT/<name>/full after every run. To go on, bring OUT back to the machine and give
# the same command again. Plots: `ebs-cfl reproduce <name> --scale full --out OUT --render` where matplotlib is.
set -u
out=${1:?OUT}
seconds=${2:?SECONDS}
shift 2
names=("${@:-table-noniid}")
cd "$(dirname "$0")/.."
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
export OMP_WAIT_POLICY=PASSIVE
data=${EBSCFL_DATA:-data}
end=$((SECONDS + seconds))
code=0
for name in "${names[@]}"; do
  left=$((end - SECONDS - 20)) # the last round, its checkpoint and the result files come after the limit
  if [ "$left" -le 0 ]; then
    echo "no time left for $name" >&2
    exit 130
  fi
  "${PYTHON:-python3}" -m ebscfl.reproduce "$name" --scale full --out "$out" --data-dir "$data" --packed --resume \
    --time-limit "$left" ${SEEDS:+--seeds $SEEDS} || code=$?
  [ "$code" -eq 0 ] || exit "$code"
done
