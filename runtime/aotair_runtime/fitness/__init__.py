"""Whether an artifact would run on this node, asked before its weights are read, and what the node has."""
