"""How `nip` prints: terminals, tables of plans and runs, options of several commands."""
