"""The proxy between a command without a network and the hosts it was granted: HTTP, CONNECT and SOCKS5."""
