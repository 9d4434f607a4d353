"""The name that `nip_by_hand.fine_tuning` had before it was a distribution of its own."""

from nip_core.moved import alias_package

alias_package(__name__, "nip_by_hand.fine_tuning")
