"""The fleet: jobs on a queue (RQ on Redis), done by workers elsewhere; what comes back is held here."""
