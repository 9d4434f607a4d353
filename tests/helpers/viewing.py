"""The viewer as a browser of this machine gets it, and what is on its pages.

client_of    a client of the viewer of a store
everything   the episodes on all pages of a list
rows_on, text_of   what one page has
"""

import html
import re
from urllib.parse import urlencode

from starlette.testclient import TestClient

from nip_core.run_store.store import open_store
from nip_view.app import make_app
from nip_view.runs import ShownRuns

HOSTILE = '<script>alert(1)</script> <img src=x onerror="alert(2)"> {{ 7 * 7 }} &lt;b&gt;'


def client_of(store, *, token=None, named=(), clock=None):
    """What a browser of this machine gets of the runs in a store."""
    runs = ShownRuns(open_store(store, read_only=True), named)
    if clock is not None:
        for run in runs.all():
            run._clock = run.index._clock = clock
    return TestClient(make_app(runs, token), base_url="http://127.0.0.1")


def text_of(page):
    """The words of a page, without its elements."""
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def rows_on(page):
    """Keys of the episodes that a list has, in its order."""
    return re.findall(r'/episodes/([\w-]{16})(?:\?[^"]*)?">', page)


def everything(client, address, **asked):
    """The keys on all pages of a list."""
    keys, page = [], 1
    while True:
        text = client.get(f"{address}?{urlencode({**asked, 'page': page})}").text
        keys += rows_on(text)
        if 'rel="next"' not in text:
            return keys
        page += 1
