"""One file per engine: a Plan becomes a Launch; what its log and answers say."""
