#!/usr/bin/env bash
# The mixture's table 2, reduced: CIFAR-10, 5 clients, 500 training and 400 validation images each; FedAvg, local,
# fine-tuned and mixture for p = 1, 0.9, 0.8 and q = 0, 0.8, two seeds. ROUNDS (30) of FedAvg instead of 1500, B = 50 and
# lr 5e-4 instead of 10 and 1e-4, at most EPOCHS (40) at home instead of 200.
# usage: benchmarks/moe_cifar10.sh DATA_FOLDER OUTPUT_FOLDER      (DATA_FOLDER holds cifar10.npz)
set -euo pipefail
data=$1 output=$2
mkdir -p "$output"
for seed in ${SEEDS:-1 2}; do for q in 0 0.8; do for p in 1.0 0.9 0.8; do
    name=p${p}_q${q}_$seed
    fedlit fit --config moe_cifar10.yaml --data.root "$data" --seed_everything $seed --data.partition_seed $seed \
        --data.partition.p $p --data.opt_out $q --data.batch_size 50 --model.optimizer.lr 5e-4 \
        --model.epochs "${EPOCHS:-40}" --trainer.num_rounds "${ROUNDS:-30}" --trainer.eval_every_n_rounds 10 \
        --trainer.save_every_n_rounds 20 --trainer.default_root_dir "$output/$name" > "$output/$name.txt"
    echo "$name $(grep -E ' own ' "$output/$name.txt" | grep -E '^(acc|gate|local_expert|global_expert)' | awk '{print $1"/"$2, $4}' | tr '\n' ';')" | tee -a "$output/summary.txt"
done; done; done
