"""One task as its users would write it in four frameworks; `benchmarks.peers.lines` compares."""
