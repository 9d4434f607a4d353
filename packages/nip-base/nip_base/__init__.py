"""What the parts of nip share: formats, wire, digests, errors, processes, files on a disk."""
