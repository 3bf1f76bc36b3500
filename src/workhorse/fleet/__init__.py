"""Several machines, one service: nodes, replicas and the front before them, on Ray."""
