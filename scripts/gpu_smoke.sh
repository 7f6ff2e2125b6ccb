#!/usr/bin/env bash
# Shows on a machine with GPUs that what the CPU tests cannot see works there.
#
#   scripts/gpu_smoke.sh                    with the tiny models that come with vagentrl
#   scripts/gpu_smoke.sh --policy FOLDER    with a text model of your own as well
#   scripts/gpu_smoke.sh --jobs 6           with so many parts at a time, which share the GPUs
#
# It runs the tests marked `gpu`; samples with vLLM on the last GPU, which sleeps, wakes and takes new
# weights; trains a few steps with every strategy on two GPUs, from the same seed; and compares their
# numbers with those of one GPU. On a machine with one GPU it trains with every strategy on that one,
# and says what it left out. It takes less than half an hour; each part may take ten minutes at most.
# It ends with a table, and with exit code 1 if anything failed or differed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -d .venv ]]; then
    PATH="$PWD/.venv/bin:$PATH"
fi

own=
jobs=1
while (($#)); do
    case $1 in
        --policy) own=${2:?gpu_smoke.sh: --policy needs a folder with a model} ;;
        --jobs) jobs=${2:?gpu_smoke.sh: --jobs needs a number} ;;
        *)
            echo "gpu_smoke.sh: $1 is not known; give --policy FOLDER, --jobs N or nothing" >&2
            exit 2
            ;;
    esac
    shift 2
done

gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
if ((gpus < 1)); then
    echo "gpu_smoke.sh: torch sees no GPU. Run it on a machine with NVIDIA GPUs, better two than one," \
        "with a CUDA build of torch (nvidia-smi and CUDA_VISIBLE_DEVICES say what is there)" >&2
    exit 2
fi
last=$((gpus - 1))
both=$((gpus < 2 ? 1 : 2)) # GPUs of the runs that compare strategies

out=$(mktemp -d "${TMPDIR:-/tmp}/gpu_smoke.XXXXXX")
mkdir "$out/results"
parts=0
report() { # NUMBER NAME SECONDS RESULT
    printf '%-40s %5s s  %s\n' "$2" "$3" "$4" >"$out/results/$(printf %03d "$1")"
}
left_out() { # NAME REASON
    parts=$((parts + 1))
    report "$parts" "$1" 0 "left out: $2"
}

# run_part NUMBER NAME COMMAND...: run a part with a time limit, and keep its output.
run_part() {
    local number=$1 name=$2 start=$SECONDS
    shift 2
    if timeout --kill-after=30 600 "$@" >"$out/${name// /_}.log" 2>&1 </dev/null; then
        report "$number" "$name" $((SECONDS - start)) ok
    else
        report "$number" "$name" $((SECONDS - start)) "FAILED, see $out/${name// /_}.log"
    fi
    cat "$out/results/$(printf %03d "$number")"
}
part() { # NAME COMMAND...
    while (($(jobs -rp | wc -l) >= jobs)); do
        wait -n || true
    done
    parts=$((parts + 1))
    run_part "$parts" "$@" &
}

# fit NAME CONFIG POLICY SETTINGS...: two iterations of a small run, whose numbers stay in $out/NAME.
fit() {
    local name=$1 config=$2 policy=$3
    shift 3
    part "$name" vagentrl fit --config "configs/$config.yaml" --model.policy "$policy" \
        --trainer.accelerator gpu --trainer.max_epochs 2 --trainer.limit_val_batches 0 \
        --trainer.gradient_clip_val null --trainer.enable_progress_bar false \
        --trainer.logger.save_dir "$out/$name" "$@"
}

# runs CONFIG POLICY: train one policy in all ways.
runs() {
    local config=$1 policy=$2 label strategy transfer gpu
    label=$(basename "$policy")
    labels+=("$label")
    fit "$label one GPU" "$config" "$policy" --trainer.devices 1
    if ((gpus > 1)); then
        # Kernels that do not look at where their tensors are fail on a device other than 0.
        fit "$label last GPU" "$config" "$policy" --trainer.devices "[$last]"
    fi
    for strategy in ddp deepspeed_stage_2 fsdp2; do
        fit "$label $strategy" "$config" "$policy" --trainer.devices "$both" \
            --trainer.strategy "$strategy"
    done
    if ! python -c 'import vllm' 2>/dev/null; then
        left_out "$label vLLM" "vllm is not installed"
        return
    fi
    # Each update wakes vLLM, gives it new weights, compares it with the actor, and learning
    # puts it to sleep.
    vllm=(--data.engine=VLLMEngine --data.engine.gpu_memory_utilization=0.05
        --data.engine.kv_cache_gb=1)
    fit "$label vLLM last GPU" "$config" "$policy" --trainer.devices "[$last]" "${vllm[@]}"
    if ((gpus > 1)); then
        fit "$label vLLM two GPUs" "$config" "$policy" --trainer.devices 2 --trainer.strategy ddp \
            "${vllm[@]}"
    fi
    # Weights change while episodes are in play, in the thread that samples. From here on vLLM
    # compiles no graphs, because it starts sooner without.
    fit "$label vLLM two ahead" "$config" "$policy" --trainer.devices "$both" \
        --trainer.strategy ddp "${vllm[@]}" --data.engine.enforce_eager=true \
        --trainer.max_epochs 4 --data.staleness 2 \
        --model.optimizer.actor_lr 1e-6 --model.policy_loss.importance=TruncatedImportance
    for transfer in files ipc nccl; do
        gpu=$last
        [[ $transfer == ipc ]] && gpu=0 # the trainer's
        if [[ $transfer == nccl ]] && ((gpus < 2)); then
            left_out "$label vLLM fleet nccl" "NCCL wants a GPU for the server alone"
            continue
        fi
        fit "$label vLLM fleet $transfer" "$config" "$policy" --trainer.devices 1 \
            --data.engine=VLLMFleet --data.engine.servers=1 --data.engine.devices="['$gpu']" \
            --data.engine.options="{gpu_memory_utilization: 0.05, enforce_eager: true}" \
            --data.engine.kv_cache_gb=1 --data.engine.transfer="$transfer"
    done
}

part "tests marked gpu" pytest -q -m gpu tests
labels=()
runs bandit tiny-bandit-text
runs frozen_lake_vlm tiny-frozen-lake-vlm
if [[ -n $own ]]; then
    runs bandit "$own"
fi
if ((gpus < 2)); then
    left_out "two ranks, and the last GPU" "there is one GPU"
fi
wait

echo
cat "$out"/results/*
echo
failed=0
grep -q FAILED "$out"/results/* && failed=1
for label in "${labels[@]}"; do
    python scripts/compare_smoke.py "$out" "$label one GPU" || failed=1
done
echo "logs and runs are in $out"
exit "$failed"
