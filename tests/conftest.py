"""Makes ``stack`` (the real Prometheus and Alertmanager, for tests) importable from every folder below."""
