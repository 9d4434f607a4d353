"""GET /metrics, for Prometheus. Needs a key like the rest."""

from aiohttp import web

from nip_lm_server.api.metrics import CONTENT_TYPE
from nip_lm_server.api.plumbing import SERVICES


async def show_metrics(request: web.Request) -> web.StreamResponse:
    """Everything that is counted, in Prometheus's text format."""
    services = request.app[SERVICES]
    body = services.metrics.render(services.state_dir, services.database, services.pool)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
