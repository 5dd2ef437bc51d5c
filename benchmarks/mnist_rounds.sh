#!/usr/bin/env bash
# Rounds of FedAvg to 95 % and 97 % on the real MNIST: 100 clients, two shards or IID, C = 0.1, B = 10.
# usage: benchmarks/mnist_rounds.sh DATA_FOLDER OUTPUT_FOLDER     (DATA_FOLDER holds mnist.npz; one core, one to two hours)
set -euo pipefail
data=$1 output=$2
fit() {
    local name=$1; shift
    fedlit fit --config fedavg_mnist_shards.yaml --data.root "$data" --trainer.default_root_dir "$output/$name" \
        --trainer.callbacks fedlit.callbacks.StopAt --trainer.callbacks.value 0.97 "$@" | tee "$output/$name.txt"
    python - "$output/$name/lightning_logs/version_0/metrics.csv" "$name" <<'PY' | tee -a "$output/summary.txt"
import csv, sys
rows = [r for r in csv.DictReader(open(sys.argv[1])) if (r["model"], r["data"], r["metric"]) == ("global", "pooled", "acc")]
reached = {goal: next((r["round"] for r in rows if float(r["value"]) >= goal), "not reached") for goal in (0.9, 0.95, 0.97)}
print(sys.argv[2], reached, "last", rows[-1]["round"], rows[-1]["value"])
PY
}
mkdir -p "$output"
iid="--data.partition fedlit.partition.IID"
cnn="--model.network.class_path fedlit.networks.McMahanCNN --trainer.eval_every_n_rounds 2"
fit mlp_iid $iid
fit mlp_shards
fit cnn_iid $iid $cnn
fit cnn_shards $cnn --trainer.num_rounds 200
