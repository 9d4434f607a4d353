"""A run that is opened: what is checked before, and what its stages share.

prepare           everything that takes no server
problems_of_run, contents    its problems; digests of what decides its data
origin            models of other runs; attacked_run: the run that an attack is compared with
disk_room         whether the disks have room
opening           the lease, the server, the clients
server_checks     what only a server can say; prompt_checks: whether it takes the game's chats
                  guide_checks: and holds answers to their form, where it must
session           what all stages of a run share in one process
"""
