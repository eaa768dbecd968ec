"""The HTTP API and the files of the page: checks what comes in, calls the library, and words the answer.

Annotations are evaluated here, as FastAPI reads those of functions inside functions.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from switchyard import __version__
from switchyard.errors import InputError, SwitchyardError
from switchyard.health.metrics_collector import MetricsCollector
from switchyard.health.read_model import ReadModel
from switchyard.kafka.topics import TopicReader
from switchyard.local import swap_client
from switchyard.local.kafka_settings import find_kafka
from switchyard.settings import Settings
from switchyard.stream.failures import explain_failure
from switchyard.tables.changes import parse_position
from switchyard.tables.queries import MOST_FILTERS, MOST_ROWS, MOST_TEXT, SECRET_COLUMNS, WINDOW_ROWS, parse_query
from switchyard.tables.schemas import SCHEMAS
from switchyard.tables.stable_names import ACTIVE_NAMES, WHOLE_NAMES, resolve_name
from switchyard.web import documents
from switchyard.web.access import Access, Viewer, mask_row, refuse_cross_site
from switchyard.web.documents import dump
from switchyard.web.streaming import stream_changes

STATIC = Path(__file__).with_name("static")
API = "/api/v1"
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": documents.Problem, "description": "What was asked for cannot be done as it was asked."},
    401: {"model": documents.Problem, "description": "Nobody is logged in."},
    403: {"model": documents.Problem, "description": "The role does not allow it."},
    503: {"model": documents.Problem, "description": "The broker or the tables cannot be reached."},
}
_CHANGES: dict[str, Any] = {
    "description": "Events; the title of each document is the name of its event.",
    "content": {
        "text/event-stream": {
            "schema": {"anyOf": [kind.model_json_schema() | {"title": name} for name, kind in documents.EVENTS.items()]}
        }
    },
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def create_app(settings: Settings, access: Access, static: Path = STATIC) -> FastAPI:
    app = FastAPI(
        title="Switchyard",
        version=__version__,
        dependencies=[Depends(access.read)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        responses=_REFUSALS,
    )
    app.middleware("http")(_add_headers)
    app.add_exception_handler(SwitchyardError, _explain)
    app.add_exception_handler(Exception, _explain_unexpected)
    add_reading(app, settings, access, ReadModel(settings))
    add_commands(app, settings, access)
    add_page(app, static)
    return app


async def _add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _explain(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 400 if isinstance(error, InputError) else 503)


def _explain_unexpected(request: Request, error: Exception) -> JSONResponse:
    # The server writes the stack into its log.
    return JSONResponse({"detail": explain_failure(error, "the log of the API server has the details")}, 500)


def add_reading(app: FastAPI, settings: Settings, access: Access, model: ReadModel) -> None:
    Reads = Annotated[Viewer, Depends(access.read)]  # an alias of a type

    @app.get(f"{API}/me")
    def me(viewer: Reads) -> documents.Me:
        return documents.Me(name=viewer.name, mayCommand=viewer.may_command, seesAddresses=viewer.sees_addresses)

    @app.get(f"{API}/status", response_model=documents.StatusReport)
    def status() -> Response:
        return _json(model.status())

    @app.get(f"{API}/tables")
    def tables() -> list[documents.Table]:
        return [
            documents.Table(name=name, columns=[_describe(field) for field in SCHEMAS[resolve_name(name)]])
            for name in (*ACTIVE_NAMES, *WHOLE_NAMES)
        ]

    @app.get(API + "/tables/{name}", response_model=documents.TablePage, responses={404: _REFUSALS[400]})
    def table(
        name: str,
        viewer: Reads,
        filter: Annotated[
            list[str], Query(max_length=MOST_FILTERS, description="column:operator:value, all must hold")
        ] = [],  # noqa: B006  # FastAPI copies it
        quick: Annotated[str, Query(max_length=MOST_TEXT, description="every word must be in some text")] = "",
        sort: Annotated[str, Query(max_length=MOST_TEXT, description="columns, `-` before one: descending")] = "",
        offset: Annotated[int, Query(ge=0, lt=WINDOW_ROWS)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    ) -> Response:
        if name not in ACTIVE_NAMES and name not in WHOLE_NAMES:
            raise HTTPException(404, f"there is no table of this name: see {API}/tables")
        query = parse_query(
            resolve_name(name),
            filters=filter,
            quick=quick,
            sort=sort,
            offset=offset,
            limit=limit,
            sees_addresses=viewer.sees_addresses,
        )
        page = model.reader.page(name, query)
        rows = page.rows if viewer.sees_addresses else [mask_row(row) for row in page.rows]
        return _json({"rows": rows, "total": page.total, "version": page.version, "generation": page.generation})

    @app.get(f"{API}/swaps", response_model=documents.Swap)
    def swap(id: Annotated[str, Query(min_length=1, max_length=300)]) -> Response:
        return _json(model.swap(id))

    @app.get(f"{API}/topics")
    def topics() -> documents.Topics:
        with TopicReader(find_kafka(settings)) as reader:
            return documents.Topics(topics=reader.list_joinable())

    @app.get(f"{API}/changes", response_class=StreamingResponse, responses={200: _CHANGES})
    async def changes(
        request: Request,
        viewer: Reads,
        rows: Annotated[list[str], Query(max_length=4, description="names whose new rows are wanted")] = [],  # noqa: B006
        position: Annotated[str, Query(max_length=1000, description="where to go on; as Last-Event-ID")] = "",
    ) -> StreamingResponse:
        if not set(rows) <= set(ACTIVE_NAMES):
            raise InputError(f"new rows can be had of {', '.join(ACTIVE_NAMES)} only")
        last = request.headers.get("last-event-id") or position
        start = parse_position(last) if last else None
        body = stream_changes(model, viewer, start, rows)
        # Without the header nginx holds events back until its buffer is full.
        return StreamingResponse(body, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    collector = MetricsCollector(model)

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:
        return Response(generate_latest(collector), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.get(f"{API}/openapi.json", response_model=dict[str, Any])
    def openapi() -> Response:
        return _json(app.openapi())


def add_commands(app: FastAPI, settings: Settings, access: Access) -> None:
    Commands = Annotated[Viewer, Depends(access.command)]  # an alias of a type
    guarded: dict[str, Any] = {"dependencies": [Depends(refuse_cross_site)]}

    @app.post(f"{API}/plan", response_model=dict[str, Any], **guarded)
    def plan(command: documents.Command, viewer: Commands) -> Response:
        return _json(swap_client.make_dry_run(settings, command.fields(), _by(viewer)).document())

    @app.post(f"{API}/swap", status_code=202, **guarded)
    def swap(command: documents.Command, viewer: Commands) -> documents.Sent:
        return documents.Sent(swapId=swap_client.send_swap(settings, command.fields(), command.id, _by(viewer)))

    @app.post(f"{API}/rollback", status_code=202, **guarded)
    def rollback(undo: documents.Undo, viewer: Commands) -> documents.Sent:
        return documents.Sent(swapId=swap_client.send_rollback(settings, undo.id, lambda line: None, _by(viewer)))


def add_page(app: FastAPI, static: Path) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        if not (static / "index.html").exists():
            raise SwitchyardError("the page has not been built: run make setup, then start again")
        return FileResponse(static / "index.html")

    @app.get("/static/{name}", include_in_schema=False)
    def asset(name: str) -> Response:
        known = {path.name: path for path in static.iterdir()} if static.exists() else {}
        if name not in known or not known[name].is_file():
            raise HTTPException(404, "there is no such file")
        return FileResponse(known[name], headers={"Cache-Control": "private, max-age=3600"})


def _describe(field: pa.Field) -> documents.Column:
    is_text, is_time = pa.types.is_string(field.type), pa.types.is_timestamp(field.type)
    kind: Any = "text" if is_text else "time" if is_time else "number"
    return documents.Column(name=field.name, type=kind, holdsAddresses=field.name in SECRET_COLUMNS)


def _by(viewer: Viewer) -> str:
    return f"page:{viewer.name}"


def _json(document: Any) -> Response:
    return Response(dump(document), media_type="application/json")
