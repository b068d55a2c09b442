"""Other people's interfaces to an agent's place of work, each over the Python face and each an optional extra."""
