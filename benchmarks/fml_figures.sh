#!/usr/bin/env bash
# FML v2, figures 5 and 6, reduced: every client's personal accuracy on its task's whole test set, with FML and alone.
# usage: [SAMPLES=300] [ROUNDS=8] benchmarks/fml_figures.sh DATA_FOLDER OUTPUT_FOLDER     (cifar10.npz, cifar100.npz)
set -euo pipefail
data=$1 output=$2 samples=${SAMPLES:-300}
iid="--data.partition fedlit.partition.IID --data.partition.samples_per_client $samples"
run() {
    local recipe=$1 name=$2; shift 2
    local common="--config papers/fml_v2_$recipe.yaml --data.root $data --trainer.default_root_dir $output/$name --trainer.num_rounds ${ROUNDS:-8}"
    fedlit fit $common --trainer.eval_every_n_rounds 10 --trainer.save_every_n_rounds 10 "$@" > "$output/$name.txt"
    fedlit test $common "$@" --ckpt_path last >> "$output/$name.txt"
    grep -h ",personal,pooled,acc," "$output/$name"/lightning_logs/version_0/test.csv | sed "s/^/$name /" | tee -a "$output/summary.txt"
}
mkdir -p "$output"
python - "$data" "$output" "$samples" <<'PY'
import sys
import numpy as np
data, output, samples = sys.argv[1:]
for name in ("cifar10", "cifar100"):  # figure 6: twice as many samples of each task, since it has one client
    full = np.load(f"{data}/{name}.npz")
    chosen = np.random.default_rng(0).permutation(len(full["train_labels"]))[: 2 * int(samples)]
    part = {k: full[k][chosen] if k.startswith("train") else full[k] for k in full}
    np.savez(f"{output}/{name}.npz", **part)
PY
alone="--model fedlit.methods.LocalOnly"
run models fig5_fml $iid
run models fig5_alone $alone $iid
data=$output
run tasks fig6_fml
run tasks fig6_alone $alone
