"""What tests have in common that speak to the MCP server by the SDK's own client."""

import pytest

# The SDK's own, and its dependencies'.
IGNORED_WARNINGS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ERAS = ["legacy", "2026-07-28"]
