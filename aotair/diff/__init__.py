"""What is different between two artifacts: graphs by what they compute, weights, plans, proofs and sizes."""
