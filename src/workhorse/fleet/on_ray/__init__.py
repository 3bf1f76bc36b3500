"""All that touches Ray: the only folder that imports it (extra `fleet`)."""
