#!/usr/bin/env bash
# DLAD's table II on MNIST, reduced: ten LeNet5 clients, IID and NIID1-3, two seeds; client, average, labeled, adaptive.
# 10,000 training images (8,000 public, 1,000 per client), no augmentation, B = 50; epochs 10 (clients), 3 (density) and
# 10 (distillation) instead of 50, 20 and 100. One run trains the clients; the other aggregators take its uploads.
# MIXED=1: as table III, five LeNet5 clients, five MLP clients, and CNN1 for the global model.
# usage: benchmarks/dlad_mnist.sh DATA_FOLDER OUTPUT_FOLDER      (DATA_FOLDER holds mnist.npz)
set -euo pipefail
data=$1 output=$2
mkdir -p "$output"
python - "$data" "$output" <<'PY'
import sys
import numpy as np
full = np.load(f"{sys.argv[1]}/mnist.npz")
chosen = np.random.default_rng(0).permutation(len(full["train_labels"]))[:10000]
np.savez(f"{sys.argv[2]}/mnist10.npz", **{k: full[k][chosen] if k.startswith("train") else full[k] for k in full})
PY
mixed=()
if [ -n "${MIXED:-}" ]; then
    cat > "$output/mixed.yaml" <<'YAML'
model:
  class_path: fedlit.methods.DLAD
  init_args:
    student: {class_path: fedlit.networks.CNN1, init_args: {in_channels: 1, image_size: 28}}
    client_networks:
      5: &mlp {class_path: fedlit.networks.MLP}
      6: *mlp
      7: *mlp
      8: *mlp
      9: *mlp
YAML
    mixed=(--config "$output/mixed.yaml")
fi
fit() {
    local name=$1; shift
    fedlit fit --config dlad_fashion.yaml "${mixed[@]}" --data.dataset "$output/mnist10.npz" --data.num_clients 10 --data.public 0.8 \
        --data.partition.samples_per_client 1000 \
        --data.batch_size 50 --model.client_epochs 10 --model.density_epochs 3 --model.distil_epochs 10 \
        --trainer.save_every_n_rounds 10 --trainer.default_root_dir "$output/$name" "$@" > "$output/$name.txt"
    echo "$name $(grep -E '^acc' "$output/$name.txt" | awk '{print $2"_on_"$3, $4}' | tr '\n' ';')" | tee -a "$output/summary.txt"
}
for seed in ${SEEDS:-1 2}; do for setting in ${SETTINGS:-niid1 iid niid2 niid3}; do
    common="--seed_everything $seed --data.partition_seed $seed --data.partition.sets $setting"
    fit adaptive_${setting}_$seed $common
    for aggregator in average labeled; do
        fit ${aggregator}_${setting}_$seed $common --model.aggregator $aggregator \
            --model.earlier "$output/adaptive_${setting}_$seed/lightning_logs/version_0/checkpoints/last.ckpt"
    done
done; done
