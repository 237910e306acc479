"""`make bench`: the CPU benches, one after the other, in under ten minutes."""

import subprocess
import sys

BENCHES = ("prepare_cpu", "loader_cpu", "pretrain_cpu", "finetune_cpu", "encode_cpu", "serve_cpu")

for name in BENCHES:
    print(f"\n== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False)
