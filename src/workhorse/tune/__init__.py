"""One variable at a time from the plan to a better one, each step with its proof."""
