"""The shared code of nip's parts: formats, wire, digests, errors, processes, files on a disk."""
