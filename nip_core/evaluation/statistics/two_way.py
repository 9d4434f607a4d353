"""The name of `nip_study.parts.two_way` here: intervals over seeds and questions."""

from nip_core.moved import alias_package

alias_package(__name__, "nip_study.parts.two_way")
