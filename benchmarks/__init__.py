"""Speed and memory, each figure a ratio against a peer in the same run: these machines are noisy."""
