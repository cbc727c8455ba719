"""What random requests are made of besides what the description says: names and ids that exist, and NDJSON."""

import json

import schemathesis

NAMES = ["shop", "paused"]


@schemathesis.serializer("application/x-ndjson")
def ndjson(ctx, value):
    return "\n".join(json.dumps(line) for line in (value if isinstance(value, list) else [value])).encode()


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Half of what is random would never name anything."""
    if not path_parameters:
        return path_parameters
    name, id = path_parameters.get("name"), path_parameters.get("id")
    if isinstance(name, str) and len(name) % 2:
        path_parameters["name"] = NAMES[len(name) % len(NAMES)]
    if isinstance(id, int) and id % 2:
        path_parameters["id"] = id % 12
    return path_parameters


@schemathesis.hook
def map_body(context, body):
    """A config that is right, now and then."""
    if isinstance(body, dict) and isinstance(body.get("config"), dict) and len(str(body)) % 2:
        body["config"] = {"url": "http://127.0.0.1:9/hook"}
    return body
