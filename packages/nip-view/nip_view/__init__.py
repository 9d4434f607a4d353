"""A local page over the tables of runs: every episode, not a sample.

queries       the query of an address: filters, order, page
text_search   finds episodes by the texts in them, and cuts texts at the hits
episode_list  the rows of a list with their texts
matrix        problems by iterations, and episodes of two places in pairs
measures      confusion and calibration
charts        curves as points of an SVG
episode_page  one episode with the chats that its agents saw
run_index     the index of a run, which grows; kept_calls: the texts of its models
runs          the runs that are shown, each with its index and its records
pages         the contents of each page
overview      the contents of a run's page
side_by_side  the contents of pages about two places, or two episodes
downloads     rows and pairs as files; asked_downloads: which ones an address asks for
noting        notes and stars on pages, and the fields of a sent form
security      who may ask: host names, a token, headers
app           routes

It reads runs, and writes nothing but notes, beside them (`nip_core.showing.episodes.notes`).

The tables of a page and its style are those of the report (`nip_core.report.report`).

Covered: a damaged or half-written part of a run is named on the page, and the rest of the
run is shown. No part of an address becomes a path in a store: runs, splits and episodes are looked
up among those that are there.
Not covered: several users with different rights; a user with the token sees every run of
the store.
"""
