//! `punctual dead redrive ROUTE --edit ID`: changes a dead letter in an editor, and schedules it again.

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::process::Command;

use super::{
    client::{CallError, Session, of_message, of_route},
    failure::Failure,
    output,
};
use crate::{api::ulids, time::UnixMillis};

/// The line before the payload.
const PAYLOAD: &str = "--- payload ---";

/// The fields of the head of the file, in this order.
const HEAD: [&str; 6] = ["content_type", "headers", "key", "key_base64", "max_attempts", "expires_at"];

/// The editor if neither VISUAL nor EDITOR is set.
const EDITOR: &str = "vi";

/// Edits and redrives one dead letter. `redrive`: the body of the redrive without `ids`, with `expiry` if it was given.
pub async fn run(
    session: &Session<'_>,
    route: &str,
    id: &str,
    yes: bool,
    mut redrive: Map<String, Value>,
) -> Result<(), Failure> {
    let path = of_message(route, id, "")?;
    let message = session.client.get(&path).await?;
    let letter = Letter::of(&message)?;
    let mut file = EditedFile::new(&letter.text(&message))?;
    let changes = loop {
        file.edit().await?;
        let changes = match letter.patch(&file.text()?) {
            Ok(changes) => changes,
            Err(text) => {
                file.again(text)?;
                continue;
            }
        };
        if changes.is_empty() {
            if !yes {
                output::ask(&format!("redrive `{id}` as it is, because the file is unchanged"))?;
            }
            break changes;
        }
        let body = Value::from(changes.clone()).to_string();
        match session.client.call(Method::PATCH, &path, Some(body.into())).await {
            Ok(_) => break changes,
            Err(CallError::Refused(refusal)) if matches!(refusal.status, 400 | 413 | 422) => {
                file.again(refusal.text())?;
            }
            Err(error) => return Err(file.kept(error.into())),
        }
    };
    drop(file);
    // A redrive drops the time of expiry by default: not one that was given in the editor.
    let keeps = changes.get("expires_at").is_some_and(|at| !at.is_null());
    redrive.entry("expiry").or_insert_with(|| if keeps { "keep" } else { "drop" }.into());
    redrive.insert("ids".into(), json!([id]));
    let edited = if changes.is_empty() { "unchanged" } else { "edited" };
    let reply = session.client.post(&of_route(route, "/dead/redrive")?, &redrive.into()).await;
    let reply = reply.map_err(|failure| failure.map(|text| format!("`{id}` is {edited}, but not redriven: {text}")))?;
    if let Some(refused) = reply["refused"].as_array().and_then(|all| all.first()) {
        return Err(Failure::Failed(format!("`{id}` is {edited}, but stays: {}", refused["detail"])));
    }
    if reply["count"] != 1 {
        return Err(Failure::NotFound(format!("`{id}` is {edited}, but not dead any more: it was not redriven")));
    }
    let json = json!({ "id": id, "status": edited, "count": 1 });
    output::result(session.global, json, format_args!("redrove {id}, {edited}"))
}

/// A dead letter as the file shows it.
struct Letter {
    head: Map<String, Value>,
    /// `None`: it is not text, and is in the head as `payload_base64`.
    payload: Option<String>,
    revision: Value,
}

impl Letter {
    fn of(message: &Value) -> Result<Self, Failure> {
        if let Some(error) = message["unreadable"].as_str() {
            return Err(Failure::Failed(format!("it cannot be edited: {error}. `schedule --replace` replaces it")));
        }
        if message["state"] != "dead" || !message["revision"].is_string() {
            return Err(Failure::Failed(format!("it is {}: only a dead letter is edited", message["state"])));
        }
        let mut head = Map::new();
        for name in HEAD {
            let value = match (name, &message[name]) {
                ("key_base64", Value::Null) => continue,
                ("expires_at", Value::Number(at)) => {
                    let at = at.as_u64().and_then(UnixMillis::new).unwrap_or_default();
                    at.to_rfc3339().into()
                }
                (_, value) => value.clone(),
            };
            head.insert(name.to_owned(), value);
        }
        let payload = message["payload"].as_str().map(str::to_owned);
        if payload.is_none() {
            head.insert("payload_base64".into(), message["payload_base64"].clone());
        }
        Ok(Self { head, payload, revision: message["revision"].clone() })
    }

    fn text(&self, message: &Value) -> String {
        let of = |name: &str| message[name].as_str().unwrap_or_default().replace(char::is_control, " ");
        let mut text = format!(
            "# `{}` of `{}` died at {}: {}\n# These lines are ignored. A field without a value is null. Flow and group cannot be changed.\n",
            of("id"),
            of("route"),
            of("died_at"),
            of("last_error"),
        );
        text += &serde_json::to_string_pretty(&self.head).expect("JSON");
        text.push('\n');
        if let Some(payload) = &self.payload {
            text.extend([PAYLOAD, "\n", payload]);
            if !payload.ends_with('\n') {
                text.push('\n');
            }
        }
        text
    }

    /// The body of the PATCH: only fields that differ. Empty if none does.
    ///
    /// # Errors
    /// The mistake in the text.
    fn patch(&self, text: &str) -> Result<Map<String, Value>, String> {
        let mut lines = text.split_inclusive('\n');
        let mut head = String::new();
        let (mut has_payload, mut has_crlf) = (false, false);
        for line in lines.by_ref() {
            if line.trim_end() == PAYLOAD {
                // So the editor ends all lines.
                (has_payload, has_crlf) = (true, line.ends_with("\r\n"));
                break;
            }
            if !line.starts_with('#') {
                head += line;
            }
        }
        let head: Map<String, Value> = serde_json::from_str(&head).map_err(|error| format!("the head: {error}"))?;
        let mut patch: Map<String, Value> =
            head.iter().filter(|(name, value)| self.head.get(*name) != Some(*value)).map(clone).collect();
        let removed = self.head.iter().filter(|(name, value)| !head.contains_key(*name) && !value.is_null());
        patch.extend(removed.map(|(name, _)| (name.clone(), Value::Null)));
        if has_payload {
            let mut payload: String = lines.collect();
            if has_crlf {
                payload = payload.replace("\r\n", "\n");
            }
            let former = self.payload.as_deref().unwrap_or_default();
            if !former.ends_with('\n') && payload.ends_with('\n') {
                // The line end that the file or the editor added.
                payload.pop();
            }
            if self.payload.as_deref() != Some(&payload) {
                patch.remove("payload_base64");
                patch.insert("payload".into(), payload.into());
            }
        } else if self.payload.is_some() && !head.contains_key("payload_base64") {
            return Err(format!("the line `{PAYLOAD}` is missing"));
        }
        // Null removes other fields.
        if patch.get("payload_base64").is_some_and(Value::is_null) {
            return Err("`payload_base64` is missing".into());
        }
        if !patch.is_empty() {
            patch.insert("revision".into(), self.revision.clone());
        }
        Ok(patch)
    }
}

fn clone((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

/// The file in the editor. It is deleted at the end unless it is kept.
struct EditedFile {
    path: PathBuf,
    /// As it was written.
    first: String,
    is_kept: bool,
}

impl EditedFile {
    fn new(text: &str) -> Result<Self, Failure> {
        let path = env::temp_dir().join(format!("punctual-edit-{}.txt", ulids()().as_str()));
        let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        let edited = Self { path: path.clone(), first: text.to_owned(), is_kept: false };
        file.write_all(text.as_bytes()).map_err(failed)?;
        Ok(edited)
    }

    /// Opens the editor and waits until it ends.
    async fn edit(&mut self) -> Result<(), Failure> {
        let given = |name| env::var(name).ok().filter(|editor| !editor.trim().is_empty());
        let editor = given("VISUAL").or_else(|| given("EDITOR")).unwrap_or_else(|| EDITOR.to_owned());
        // The value can have arguments, such as `code --wait`.
        let run = Command::new("sh").arg("-c").arg(format!("{editor} \"$@\"")).arg("sh").arg(&self.path).status().await;
        match run {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.kept(Failure::Failed(format!("the editor `{editor}` failed: {status}")))),
            Err(error) => Err(self.kept(Failure::Failed(format!("sh: {error}")))),
        }
    }

    fn text(&mut self) -> Result<String, Failure> {
        let failed = |error: String| Failure::Failed(format!("{}: {error}", self.path.display()));
        let read = fs::read(&self.path).map_err(|error| failed(error.to_string()));
        let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(|_| failed("is not UTF-8".into())));
        text.map_err(|failure| self.kept(failure))
    }

    /// Reports a mistake. On a terminal, asks whether to edit the file again.
    ///
    /// # Errors
    /// The mistake, if the file is not edited again.
    fn again(&mut self, mistake: String) -> Result<(), Failure> {
        if io::stdin().is_terminal() && io::stderr().is_terminal() {
            output::note(&mistake);
            if output::ask("edit it again").is_ok() {
                return Ok(());
            }
        }
        Err(self.kept(Failure::Usage(mistake)))
    }

    /// Keeps the file if it was changed. The failure then names it.
    fn kept(&mut self, failure: Failure) -> Failure {
        self.is_kept = fs::read(&self.path).is_ok_and(|bytes| bytes != self.first.as_bytes());
        let place = if self.is_kept { format!("; the file is {}", self.path.display()) } else { String::new() };
        failure.map(|text| format!("{text}. `dead redrive` did not change the message{place}"))
    }
}

impl Drop for EditedFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // The editor can have deleted it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(rest: &Value) -> Value {
        let mut message = json!({
            "id": "a", "route": "r", "state": "dead", "revision": "7", "died_at": "2026-11-21T10:00:00.000Z",
            "last_error": "rejected: HTTP 400\n", "content_type": "application/json", "headers": {"X": "1"}, "key": null,
        });
        message.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        message
    }

    fn letter(rest: &Value) -> (Letter, String) {
        let message = dead(rest);
        let letter = Letter::of(&message).unwrap();
        let text = letter.text(&message);
        (letter, text)
    }

    #[test]
    fn an_unchanged_text_changes_nothing_whatever_the_payload() {
        for payload in ["", "x", "x\n", "\n", "{\n  \"a\": 1\n}", "--- payload ---\n# x\n", "a\r\nb"] {
            let (letter, text) = letter(&json!({ "payload": payload, "expires_at": 1_700_000_000_000_u64 }));
            assert_eq!(letter.patch(&text), Ok(Map::new()), "{text}");
            if !payload.contains('\r') {
                let of_windows = text.replace('\n', "\r\n");
                assert_eq!(letter.patch(&of_windows), Ok(Map::new()), "{of_windows}");
            }
            let longer = letter.patch(&format!("{text}y")).unwrap();
            assert!(longer["payload"].as_str().unwrap().starts_with(payload), "{longer:?}");
        }
        let (letter, text) = letter(&json!({ "payload_base64": "AP8=", "key_base64": "/wA=" }));
        assert_eq!(letter.patch(&text), Ok(Map::new()), "{text}");
    }

    #[test]
    fn the_patch_has_the_fields_that_differ() {
        let (letter, text) = letter(&json!({ "payload": "{\"a\":1}" }));
        let patch = |from: &str, to: &str| letter.patch(&text.replace(from, to)).map(Value::from);
        assert_eq!(patch("{\"a\":1}", "{\"a\":2}"), Ok(json!({ "payload": "{\"a\":2}", "revision": "7" })));
        assert_eq!(patch("\"key\": null", "\"key\": \"k\""), Ok(json!({ "key": "k", "revision": "7" })));
        assert_eq!(patch("\"X\": \"1\"", ""), Ok(json!({ "headers": {}, "revision": "7" })));
        let without = patch("  \"content_type\": \"application/json\",\n", "");
        assert_eq!(without, Ok(json!({ "content_type": null, "revision": "7" })));
        assert!(patch(PAYLOAD, "--- body ---").is_err());
        assert!(patch("\"key\": null", "\"key\": nul").unwrap_err().starts_with("the head: "));
        assert!(letter.patch("").is_err());
    }

    #[test]
    fn only_readable_dead_letters_are_edited() {
        assert!(Letter::of(&json!({ "state": "pending", "payload": "x" })).is_err());
        assert!(Letter::of(&dead(&json!({ "unreadable": "the body was lost" }))).is_err());
    }
}
