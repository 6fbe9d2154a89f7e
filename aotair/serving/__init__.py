"""Artifacts that answer over a network: requests in batches, and replicas on Ray Serve (`aotair.serving.ray`)."""
