"""Ranks: the processes that run one program together, how they find each other, agree, and notice who is gone."""
