#!/usr/bin/env bash
# FML v2, table 1, MNIST MLP: FedAvg, FedProx and FML, IID and non-IID(3), three seeds, ROUNDS rounds (30 by default).
# usage: benchmarks/fml_mnist.sh DATA_FOLDER OUTPUT_FOLDER     (DATA_FOLDER holds mnist.npz; one core, about 100 minutes)
# As a study, with tables and intervals: fedlit compare papers/fml_v2_table1.yaml --only 'MNIST MLP*' --trainer.num_rounds 30
set -euo pipefail
data=$1 output=$2
fit() {
    local name=$1; shift
    fedlit fit --config papers/fml_v2_mnist.yaml --data.root "$data" --trainer.num_rounds "${ROUNDS:-30}" \
        --trainer.default_root_dir "$output/$name" --trainer.save_every_n_rounds 10 "$@" > "$output/$name.txt"
    echo "$name $(grep -E '^acc +(global +pooled|global +own|personal +own)' "$output/$name.txt" | tr -s ' ' | tr '\n' ';')" | tee -a "$output/summary.txt"
}
mkdir -p "$output"
for seed in 1 2 3; do
    for setting in niid3 iid; do
        partition="--data.partition fedlit.partition.IID"
        [ $setting = niid3 ] && partition="--data.partition fedlit.partition.Shards --data.partition.per_client 2"
        common="--seed_everything $seed --data.partition_seed $seed $partition"
        fit fml_${setting}_$seed $common
        fit fedavg_${setting}_$seed $common --model fedlit.methods.FedAvg --model.weighting uniform
        fit fedprox_${setting}_$seed $common --model fedlit.methods.FedProx --model.weighting uniform
    done
done
