"""Hosts on one Linux machine that share nothing but a network, and nip on them.

network   the hosts: namespaces of their own for network, files, processes and names
switch    the network between them, as a process: latency, loss, cables that are pulled
init      the first process of a host
"""
