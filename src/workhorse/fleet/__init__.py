"""Several machines as one service: nodes, replicas, plans for each kind of machine, the front.

Ray is imported below `on_ray/` alone, and only when a command of the fleet needs it.
"""
