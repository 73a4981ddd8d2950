"""Who a request belongs to, in a name that tells nothing of them: tenants of a class are served equally."""

from __future__ import annotations

import hashlib

from starlette.types import Scope

from server.auth import TENANT_KEY
from server.protocol.common import SamplingOptions


def tenant_of(scope: Scope, body: SamplingOptions) -> str:
    """The API key that was used, where keys are asked for; else what the client says of its user; else empty.

    A key counts alone: what a body says could be made up to look like many tenants. All names are short digests, so
    neither a key nor a user's name goes further than this process.
    """
    key_name = scope.get(TENANT_KEY)
    if key_name is not None:
        return str(key_name)
    given = body.safety_identifier or body.user
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:16] if given else ""
