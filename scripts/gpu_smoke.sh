#!/usr/bin/env bash
# Shows on a machine with two or more GPUs that what the CPU tests cannot see works there.
#
#   scripts/gpu_smoke.sh                    with the tiny models that come with vagentrl
#   scripts/gpu_smoke.sh --policy FOLDER    with a text model of your own as well
#
# It runs the tests marked `gpu`; samples with vLLM on the last GPU, which sleeps, wakes and takes new
# weights; trains a few steps with every strategy on two GPUs, from the same seed; and compares their
# numbers with those of one GPU. It takes less than half an hour; each part may take ten minutes at most.
# It ends with a table, and with exit code 1 if anything failed or differed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -d .venv ]]; then
    PATH="$PWD/.venv/bin:$PATH"
fi

policies=(tiny-bandit-text)
case ${1:-} in
    "") ;;
    --policy)
        if [[ -z ${2:-} ]]; then
            echo "gpu_smoke.sh: --policy needs a folder with a model" >&2
            exit 2
        fi
        policies+=("$2")
        ;;
    *)
        echo "gpu_smoke.sh: $1 is not known; give nothing, or --policy FOLDER" >&2
        exit 2
        ;;
esac

gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
if ((gpus < 2)); then
    echo "gpu_smoke.sh: torch sees $gpus GPUs, and two are needed. Run it on a machine with NVIDIA" \
        "GPUs, with a CUDA build of torch (nvidia-smi and CUDA_VISIBLE_DEVICES say what is there)" >&2
    exit 2
fi

out=$(mktemp -d "${TMPDIR:-/tmp}/gpu_smoke.XXXXXX")
summary=()
failed=0
report() { # NAME SECONDS RESULT
    summary+=("$(printf '%-34s %5s s  %s' "$1" "$2" "$3")")
}

# part NAME COMMAND...: run a part with a time limit, and keep its output.
part() {
    local name=$1 start=$SECONDS
    shift
    echo "── $name"
    if timeout --kill-after=30 600 "$@" >"$out/${name// /_}.log" 2>&1; then
        report "$name" $((SECONDS - start)) ok
    else
        report "$name" $((SECONDS - start)) "FAILED, see $out/${name// /_}.log"
        failed=1
    fi
}

# fit NAME POLICY SETTINGS...: two iterations of a small run, whose numbers stay in $out/NAME.
fit() {
    local name=$1 policy=$2
    shift 2
    part "$name" vagentrl fit --config configs/bandit.yaml --model.policy "$policy" \
        --trainer.accelerator gpu --trainer.max_epochs 2 --trainer.limit_val_batches 0 \
        --trainer.gradient_clip_val null --trainer.enable_progress_bar false \
        --trainer.logger.save_dir "$out/$name" "$@"
}

part "tests marked gpu" pytest -q -m gpu tests

for policy in "${policies[@]}"; do
    label=$(basename "$policy")
    fit "$label one GPU" "$policy" --trainer.devices 1
    # Kernels that do not look at where their tensors are fail on a device other than 0.
    fit "$label last GPU" "$policy" --trainer.devices "[$((gpus - 1))]"
    for strategy in ddp deepspeed_stage_2 fsdp2; do
        fit "$label $strategy" "$policy" --trainer.devices 2 --trainer.strategy "$strategy"
    done
    if python -c 'import vllm' 2>/dev/null; then
        # Each update wakes vLLM, gives it new weights, compares it with the actor, and learning
        # puts it to sleep.
        vllm=(--data.engine=VLLMEngine --data.engine.gpu_memory_utilization=0.3)
        fit "$label vLLM last GPU" "$policy" --trainer.devices "[$((gpus - 1))]" "${vllm[@]}"
        fit "$label vLLM two GPUs" "$policy" --trainer.devices 2 --trainer.strategy ddp "${vllm[@]}"
        # Weights change while episodes are in play, in the thread that samples.
        fit "$label vLLM two ahead" "$policy" --trainer.devices 2 --trainer.strategy ddp "${vllm[@]}" \
            --trainer.max_epochs 4 --data.staleness 2 --model.optimizer.actor_lr 1e-6 \
            --model.policy_loss.importance=TruncatedImportance
        for transfer in files nccl ipc; do
            gpu=$((gpus - 1))
            [[ $transfer == ipc ]] && gpu=0 # the trainer's
            fit "$label vLLM fleet $transfer" "$policy" --trainer.devices 1 \
                --data.engine=VLLMFleet --data.engine.servers=1 --data.engine.devices="['$gpu']" \
                --data.engine.options="{gpu_memory_utilization: 0.3}" \
                --data.engine.transfer="$transfer"
        done
    else
        report "$label vLLM" 0 "skipped: vllm is not installed"
    fi
done

echo
printf '%s\n' "${summary[@]}"
echo
for policy in "${policies[@]}"; do
    label=$(basename "$policy")
    python scripts/compare_smoke.py "$out" "$label one GPU" || failed=1
done
echo "logs and runs are in $out"
exit "$failed"
