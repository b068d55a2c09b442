"""The fleet: jobs on a queue (RQ on Redis), done by workers elsewhere; what comes back is held here."""

PACKAGES = ("redis", "rq", "fsspec", "s3fs")  # that the extra `fleet` brings
