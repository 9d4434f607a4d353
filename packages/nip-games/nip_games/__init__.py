"""Games with problems that nip makes itself: a scenario each, found by the entry point
`nip.scenarios`."""
