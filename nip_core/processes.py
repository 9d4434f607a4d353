"""Work in processes of its own, and the end of these with their caller; see `nip_base.mapping`."""

from nip_base import mapping

collect_seldom = mapping.collect_seldom
count_processes = mapping.count_processes
end_with = mapping.end_with
map_in_processes = mapping.map_in_processes
