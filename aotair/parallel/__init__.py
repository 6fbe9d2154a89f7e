"""How a model is shared out over the ranks of a mesh: which weights are cut, and what ranks then say to each other."""
