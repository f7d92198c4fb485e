#!/usr/bin/env bash
# Full-scale experiments on a machine with torch, numpy and Pillow and nothing else, under a time limit, resumable.
#
#   scripts/gpu_reproduce.sh OUT SECONDS [NAME ...]       default: table-noniid
#
# Before: python scripts/pack_cifar.py cifar10 data   (about 55 MiB; data/ travels with the tree, or OUT/../data)
# What is measured so far lies under OUT/<name>/full after every run. To go on, bring OUT back (results.json is enough)
# and give the same command again. JOBS processes share the GPU; ONLY is a label and its value, SEEDS are numbers;
# EBSCFL_COMMIT names the commit where git does not. Where CUDA's multi-process service can be started (MPS=0: do not
# try), the processes' kernels run side by side instead of in turns. Plots, where matplotlib is:
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
python=${PYTHON:-python3}
if [ "${MPS:-1}" = 1 ] && [ "${JOBS:-1}" -gt 1 ] && command -v nvidia-cuda-mps-control >/dev/null; then
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
  CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  trap 'echo quit | nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf "$CUDA_MPS_PIPE_DIRECTORY"' EXIT
  if nvidia-cuda-mps-control -d && timeout 60 "$python" -c 'import torch; torch.zeros(1).cuda()'; then
    echo "CUDA multi-process service is on" >&2
  else
    echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
    trap - EXIT
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    echo "no CUDA multi-process service: processes take turns" >&2
  fi
fi
left=$((seconds - SECONDS - 20))
"$python" -m ebscfl.reproduce "$names" --scale full --out "$out" --data-dir "$data" --packed --resume \
  --time-limit "$left" --jobs "${JOBS:-1}" ${ONLY:+--only "$ONLY"} ${SEEDS:+--seeds $SEEDS}
