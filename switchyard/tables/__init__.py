"""The Delta tables through delta-rs: no JVM is needed to read, decide or commit."""
