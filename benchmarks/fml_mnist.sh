#!/usr/bin/env bash
# FML v2, table 1, MNIST MLP: FedAvg, FedProx and FML, IID and non-IID(3), three seeds, ROUNDS rounds (30 by default).
# usage: benchmarks/fml_mnist.sh DATA_FOLDER OUTPUT_FOLDER     (DATA_FOLDER holds mnist.npz; one core, about 100 minutes)
set -euo pipefail
data=$1 output=$2
network="--model.network fedlit.networks.MLP --model.network.image_size 32"
optimizer="--model.optimizer torch.optim.SGD --model.optimizer.lr 0.01 --model.optimizer.momentum 0.9 --model.optimizer.weight_decay 5e-4"
fit() {
    local name=$1; shift
    fedlit fit --config papers/fml_v2_table1_mnist_mlp_niid3_fml.yaml --data.root "$data" --trainer.num_rounds "${ROUNDS:-30}" \
        --trainer.default_root_dir "$output/$name" --trainer.save_every_n_rounds 10 "$@" > "$output/$name.txt"
    echo "$name $(grep -E '^acc +(global +pooled|global +own|personal +own)' "$output/$name.txt" | tr -s ' ' | tr '\n' ';')" | tee -a "$output/summary.txt"
}
mkdir -p "$output"
for seed in 1 2 3; do
    for setting in niid3 iid; do
        partition=""; [ $setting = iid ] && partition="--data.partition fedlit.partition.IID"
        common="--seed_everything $seed --data.partition_seed $seed $partition"
        fit fml_${setting}_$seed $common
        fit fedavg_${setting}_$seed $common --model fedlit.methods.FedAvg $network $optimizer --model.weighting uniform
        fit fedprox_${setting}_$seed $common --model fedlit.methods.FedProx $network $optimizer --model.weighting uniform
    done
done
