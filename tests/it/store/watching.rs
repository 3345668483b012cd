//! Watches the commands that a script runs on certain keys.

use super::bench::Bench;

/// Replaces the module `redis` inside a script. It keeps the first command for which `IS_WATCHED` is true: an expression
/// of `command` and `key`.
const WATCHING: &str = r"
local real = redis
local function seen(command, ...)
  for _, key in ipairs({ ... }) do
    if type(key) == 'string' and (IS_WATCHED) then real.call('SET', 'seen', command) end
  end
end
local redis = {
  error_reply = real.error_reply,
  call = function(...)
    seen(...)
    return real.call(...)
  end,
  pcall = function(...)
    seen(...)
    return real.pcall(...)
  end,
}
";

impl Bench {
    /// Plays a scene. Returns a command of its script for which `is_watched` is true.
    pub async fn watch(&mut self, (scene, script): (&str, &str), is_watched: &str) -> Option<String> {
        self.set(scene).await;
        let call = self.record(scene, script).await;
        self.set(scene).await;
        let code = format!("{}{}", WATCHING.replace("IS_WATCHED", is_watched), call.code);
        let mut command = redis::cmd("EVAL");
        command.arg(code).arg(call.keys.len()).arg(&call.keys);
        for argument in &call.arguments {
            command.arg(&argument[..]);
        }
        let _: redis::Value =
            command.query_async(&mut self.raw).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
        redis::cmd("GET").arg("seen").query_async(&mut self.raw).await.expect("an answer")
    }
}
