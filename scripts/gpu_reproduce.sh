#!/usr/bin/env bash
# Full-scale experiments on a machine with torch, numpy and Pillow and nothing else, under a time limit, resumable.
#
#   scripts/gpu_reproduce.sh OUT SECONDS [NAME ...]       default: table-noniid
#
# Before: python scripts/pack_cifar.py cifar10 data   (about 55 MiB; data/ travels with the tree, or OUT/../data)
# What is measured so far lies under OUT/<name>/full after every run. To go on, bring OUT back (results.json is enough)
# and give the same command again. JOBS processes share the GPU; ONLY is a label and its value, SEEDS are numbers;
# EBSCFL_COMMIT names the commit where git does not. Plots, where matplotlib is:
# `ebs-cfl reproduce <name> --scale full --out OUT --render`.
set -u
out=${1:?OUT}
seconds=${2:?SECONDS}
shift 2
names=("${@:-table-noniid}")
cd "$(dirname "$0")/.."
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
export OMP_WAIT_POLICY=PASSIVE
data=${EBSCFL_DATA:-data}
left=$((seconds - SECONDS - 20)) # the last round, its checkpoint and the result files come after the limit
if [ "$left" -le 0 ]; then
  echo "no time left" >&2
  exit 130
fi
names=$(IFS=,; echo "${names[*]}")
exec "${PYTHON:-python3}" -m ebscfl.reproduce "$names" --scale full --out "$out" --data-dir "$data" --packed --resume \
  --time-limit "$left" --jobs "${JOBS:-1}" ${ONLY:+--only "$ONLY"} ${SEEDS:+--seeds $SEEDS}
