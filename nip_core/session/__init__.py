"""A run that is opened: the checks before, and the state that its stages share.

prepare           everything that takes no server
problems_of_run, contents    its problems; digests of all that decides its data
origin            models of other runs; attacked_run: the run that an attack is compared with
disk_room         whether the disks have room
opening           the lease, the server, the clients
server_checks     checks that need a server; prompt_checks: whether it takes the game's chats
                  guide_checks: and holds answers to their form, where it must
session           the state that all stages of a run share in one process
"""
