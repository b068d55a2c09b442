"""The proxy by which a command without a network reaches its granted hosts: HTTP, CONNECT and SOCKS5."""
