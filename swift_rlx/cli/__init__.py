"""The `swift-rlx` command: `main` parses, one module a sub-command does the work."""
