//! The description of the admin API (OpenAPI 3.1). The schemas come from the types and their doc comments.

use super::openings::OpeningRequest;
use super::overrides::{NO_CONTROLS, Order};
use crate::headcount::{ExplainedRequest, Explanation, History, OpeningStatus, OverrideStatus, Status};
use crate::text::prose;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The refusals of an operation that the access rules protect.
const GUARDED: [&str; 2] = ["401", "403"];

/// Returns the description. `capacity` is the largest X that an override can set.
pub(super) fn description(capacity: u64) -> Value {
    let mut schemas = schemas();
    schemas["Order"]["properties"]["max_active_users"]["maximum"] = capacity.into();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "headcount admin API",
            "version": "1",
            "description": "What operators read and set. Without `[admin] token_file`, the listener answers only \
                requests from this machine. With it, the listener answers requests that carry the file's token \
                (`Authorization: Bearer`). It refuses requests with an unknown `Host` or from another `Origin`.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:7071" }],
        "security": [{}, { "token": [] }],
        "paths": paths(),
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "400": problem("The query or the body cannot be read."),
                "401": problem("The bearer token is missing or wrong."),
                "403": problem("The `Host` or the `Origin` is unknown, no token is configured and the request comes \
                    from another machine or through a proxy, or the change needs a token or a header."),
                "409": problem("The change does not fit what is in force now; the problem says why."),
                "413": { "description": "The body is larger than 16 KiB." },
                "422": problem("A value is outside its bounds."),
                "503": problem("Too many event streams are open."),
            },
            "schemas": schemas,
        },
    })
}

fn paths() -> Value {
    let status = "The status once a second, as server-sent events named `status`. A stream ends after 20 s, and its \
        reader reconnects.";
    let change = json!({
        "name": "X-Headcount-Change", "in": "header", "required": false, "schema": { "type": "string" },
        "description": "Required where no bearer token is configured; any value. No form of another page can send it.",
    });
    let by = json!({
        "name": "by", "in": "query", "required": false, "description": "The operator's name, for the log.",
        "schema": { "type": "string", "maxLength": 100, "pattern": NO_CONTROLS },
    });
    let minutes = json!({
        "name": "minutes", "in": "query", "required": false, "description": "The length of the history in minutes.",
        "schema": { "type": "number", "exclusiveMinimum": 0, "maximum": 1440, "default": 30 },
    });
    let order = json!({
        "required": true,
        "content": { "application/json": {
            "schema": reference("Order"),
            "example": { "mode": "throttling", "for": "10m", "reason": "launch", "by": "ann" },
        } },
    });
    let summary = "Sets an override: on this server at once, on the whole fleet within two rounds.";
    let mut put = with(json_of(summary, reference("OverrideStatus"), &["400", "409", "413", "422"]), &[&change]);
    put["requestBody"] = order;
    let openings = json!({ "type": "array", "items": reference("OpeningStatus") });
    let summary =
        "Sets an opening for the fleet, in place of those that it overlaps and of the one that was set before.";
    let mut put_opening = with(json_of(summary, openings.clone(), &["400", "409", "413", "422"]), &[&change]);
    put_opening["requestBody"] = json!({
        "required": true,
        "content": { "application/json": {
            "schema": reference("OpeningRequest"),
            "example": { "at": "2026-12-01T18:00:00Z", "gather": "15m", "order": "lottery" },
        } },
    });
    let explain = "Explains what a check of a user would be answered now, and why. Nothing is recorded or counted.";
    let mut post = with(json_of(explain, reference("Explanation"), &["400", "413"]), &[&change]);
    post["requestBody"] = json!({
        "required": true,
        "content": { "application/json": {
            "schema": reference("ExplainedRequest"),
            "example": { "token": "the user's token" },
        } },
    });
    let history = "The history: one sample per minute for a window or less, coarser samples otherwise.";
    json!({
        "/": { "get": get("The admin page.", "text/html", text(), &["403"]) },
        "/livez": { "get": open(get("The process answers.", "text/plain", text(), &[])) },
        "/readyz": { "get": open(readiness()) },
        "/metrics": { "get": get("All figures, in Prometheus's text format.", "text/plain", text(), &GUARDED) },
        "/api/v1/status": { "get": json_of("The status of this controller.", reference("Status"), &[]) },
        "/api/v1/history": { "get": with(json_of(history, reference("History"), &["400"]), &[&minutes]) },
        "/api/v1/events": { "get": get(status, "text/event-stream", text(), &["401", "403", "503"]) },
        "/api/v1/config": { "get": json_of("The effective configuration, without secrets.", object(), &[]) },
        "/api/v1/openapi.json": { "get": json_of("This description.", object(), &[]) },
        "/api/v1/override": {
            "get": json_of("The override in force.", reference("OverrideStatus"), &[]),
            "put": put,
            "delete": with(
                json_of("Withdraws the override.", reference("OverrideStatus"), &["400", "409"]),
                &[&change, &by],
            ),
        },
        "/api/v1/opening": {
            "get": json_of("The openings to come, and the last one.", openings.clone(), &[]),
            "put": put_opening,
            "delete": with(json_of("Cancels the opening that was set.", openings, &["409"]), &[&change]),
        },
        "/api/v1/explain": { "post": post },
    })
}

/// Returns an operation with this answer. `refusals` are the statuses of its other answers.
fn get(summary: &str, media_type: &str, schema: Value, refusals: &[&str]) -> Value {
    let mut responses = Map::new();
    responses.insert("200".into(), answer(summary, media_type, schema));
    for status in refusals {
        responses.insert((*status).into(), json!({ "$ref": format!("#/components/responses/{status}") }));
    }
    json!({ "summary": summary, "responses": responses })
}

fn json_of(summary: &str, schema: Value, refusals: &[&str]) -> Value {
    get(summary, "application/json", schema, &[&GUARDED, refusals].concat())
}

fn readiness() -> Value {
    let mut get = get("This server should receive requests.", "text/plain", text(), &[]);
    get["responses"]["503"] = answer("It should not receive requests; the body says why.", "text/plain", text());
    get
}

/// Marks an operation that needs no token.
fn open(mut operation: Value) -> Value {
    operation["security"] = json!([]);
    operation
}

fn with(mut operation: Value, parameters: &[&Value]) -> Value {
    operation["parameters"] = json!(parameters);
    operation
}

fn answer(description: &str, media_type: &str, schema: Value) -> Value {
    json!({ "description": description, "content": { media_type: { "schema": schema } } })
}

fn problem(description: &str) -> Value {
    answer(description, "application/problem+json", reference("Problem"))
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn object() -> Value {
    json!({ "type": "object" })
}

/// Returns the schemas of all bodies, by name.
fn schemas() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut answers = settings.clone().for_serialize().into_generator();
    answers.subschema_for::<Status>();
    answers.subschema_for::<History>();
    answers.subschema_for::<OverrideStatus>();
    answers.subschema_for::<Explanation>();
    answers.subschema_for::<OpeningStatus>();
    let mut requests = settings.for_deserialize().into_generator();
    requests.subschema_for::<Order>();
    requests.subschema_for::<ExplainedRequest>();
    requests.subschema_for::<OpeningRequest>();
    let mut schemas = answers.take_definitions(true);
    schemas.extend(requests.take_definitions(true));
    let whole = json!({ "type": "integer", "minimum": 0 });
    schemas.insert(
        "Problem".into(),
        json!({
            "description": "A problem document (RFC 9457).",
            "type": "object",
            "properties": { "type": text(), "title": text(), "status": whole, "detail": text() },
            "required": ["type", "title", "status", "detail"],
        }),
    );
    let mut schemas = Value::Object(schemas);
    tidy(&mut schemas);
    schemas
}

/// Removes the examples from descriptions, and declares that objects have only the described fields.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(description)) = fields.get_mut("description") {
                *description = prose(description);
            }
            if fields.get("properties").is_some_and(Value::is_object) && fields.contains_key("type") {
                fields.insert("additionalProperties".into(), false.into());
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(parts) => parts.iter_mut().for_each(tidy),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// Returns the page `docs/reference/admin.md`.
    fn page() -> String {
        let description = description(65_536);
        let mut page = String::from(
            "# Admin API\n\nThe requests and bodies of the admin listener. This page is made from the description that \
             the listener serves at `/api/v1/openapi.json`, and so from the types and their doc comments in \
             `src`. [HTTP API](http.md) says who may send these requests.\n",
        );
        for (path, operations) in description["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let _ = writeln!(page, "\n## `{} {path}`\n\n{}\n", method.to_uppercase(), line(&operation["summary"]));
                for parameter in operation["parameters"].as_array().into_iter().flatten() {
                    let (name, place) = (&parameter["name"], parameter["in"].as_str().unwrap());
                    let _ = writeln!(page, "- {place} `{}`: {}", line(name), line(&parameter["description"]));
                }
                if let Some(body) = operation.pointer("/requestBody/content/application~1json/schema") {
                    let _ = writeln!(page, "- body: {}", kind(body));
                }
                for (status, answer) in operation["responses"].as_object().unwrap() {
                    let _ = match answer["content"].as_object().and_then(|content| content.iter().next()) {
                        Some((media, body)) => writeln!(page, "- {status}: {}", body_of(media, &body["schema"])),
                        None => writeln!(page, "- [{status}](#refusals)"),
                    };
                }
            }
        }
        page += "\n## Refusals\n\n| status | |\n|---|---|\n";
        for (status, answer) in description["components"]["responses"].as_object().unwrap() {
            let body = answer.pointer("/content/application~1problem+json/schema").map(kind).unwrap_or_default();
            let _ = writeln!(page, "| {status} | {} {body} |", line(&answer["description"]));
        }
        for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
            let _ = writeln!(page, "\n## {name}\n\n{}\n", line(&schema["description"]));
            if let Some(fields) = schema["properties"].as_object() {
                let _ = writeln!(page, "| field | type | |\n|---|---|---|");
                for (field, schema) in fields {
                    let _ = writeln!(page, "| `{field}` | {} | {} |", kind(schema), line(&schema["description"]));
                }
            }
            for word in schema["oneOf"].as_array().into_iter().flatten() {
                let _ = writeln!(page, "- `{}`: {}", line(&word["const"]), line(&word["description"]));
            }
        }
        page
    }

    fn line(text: &Value) -> String {
        text.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
    }

    fn body_of(media: &str, schema: &Value) -> String {
        if schema["$ref"].is_string() { kind(schema) } else { format!("`{media}`") }
    }

    /// Returns the type of a schema, with a link to the fields of an object.
    fn kind(schema: &Value) -> String {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            return format!("[{name}](#{})", name.to_lowercase());
        }
        if let Some(choices) = schema["anyOf"].as_array() {
            return choices.iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
        match &schema["type"] {
            Value::Array(types) => types.iter().map(line).collect::<Vec<_>>().join(" or "),
            kind if kind == "array" => format!("list of {}", self::kind(&schema["items"])),
            kind if schema["format"] == "date-time" => format!("{}, date and time", line(kind)),
            kind => line(kind),
        }
    }

    #[test]
    fn the_page_of_the_book_is_up_to_date() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/admin.md");
        if std::env::var_os("HEADCOUNT_WRITE_BOOK").is_some() {
            std::fs::write(file, page()).unwrap();
        }
        let written = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            written == page(),
            "{file} is old: HEADCOUNT_WRITE_BOOK=1 cargo test --features full --lib page_of_the_book"
        );
    }
}
