#!/usr/bin/env bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
# Every node runs one traincheck, which records and checks the ranks of its torchrun. The trace and the
# findings of a node are in a folder with its number.
set -euo pipefail

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HEAD="$head"

srun --kill-on-bad-exit=1 bash -c '
  traincheck run -o "traces/$SLURM_JOB_ID-$SLURM_NODEID" \
    --every 50 --warmup 20 \
    --on-finding "scontrol update JobId=$SLURM_JOB_ID Comment=traincheck-finding" \
    --report markdown="summary-$SLURM_JOB_ID-$SLURM_NODEID.md" \
    -- torchrun \
      --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" --nproc-per-node "${NPROC:-8}" \
      --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --rdzv-id "$SLURM_JOB_ID" \
      train.py
'
