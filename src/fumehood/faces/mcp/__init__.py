"""The MCP server: the door for agents that speak the Model Context Protocol."""
